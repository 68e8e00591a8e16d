module source

go 1.27

require molt v0.0.0

replace molt => ./molt/sdk/go
