// Libtorch exports its Gloo process group and not Gloo's own headers. These folders declare, and do not define,
// what the header of that process group names: nothing here assumes the layout of a class of Gloo.
#pragma once
