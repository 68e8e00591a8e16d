"""Files and processes do not exist here. The sandbox ends a session that asks for one; code that a model wrote
should get an exception instead, from which it can go on."""

import builtins
import io
import os
import posix
import warnings
import _io

FUNCTIONS = """
    access chdir chmod chown fchdir fchmod fdopen link listdir lstat mkdir mkfifo mknod open readlink remove rename
    replace rmdir scandir stat statvfs symlink truncate unlink utime walk
""".split()


def no_files() -> None:
    for module in (os, posix):
        for name in FUNCTIONS:
            if hasattr(module, name):
                setattr(module, name, refused)
    for module in (builtins, io, _io):
        module.open = refused
    for module in (io, _io):
        module.FileIO = module.open_code = refused
    # What Python says of bad style is no answer to a model.
    warnings.simplefilter("ignore")


def refused(*_arguments, **_named):
    raise PermissionError("there are no files here")
