module molt

go 1.27
