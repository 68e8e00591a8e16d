"""Loads a plugin's source, and leaves Python as it has to be where there are no files."""

import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import random  # noqa: F401  componentize-py seeds it in every instance
import sys
import traceback  # noqa: F401  Python prints uncaught exceptions with it

import molt_plugin_source as source

# A cache of byte code would lie in the author's directory.
sys.dont_write_bytecode = True
# The source comes before the standard library, which has modules of the same names.
sys.path.insert(0, source.ROOT)

# The author knows the source by its place in the project, which is mounted elsewhere here.
known = importlib.machinery.SourceFileLoader.source_to_code


def place(path):
    return path.removeprefix(f"{source.ROOT}/")


importlib.machinery.SourceFileLoader.source_to_code = lambda self, data, path, *more, **named: known(
    self, data, place(path), *more, **named
)

specification = importlib.util.spec_from_file_location(source.MODULE, f"{source.ROOT}/{source.MODULE}.py")
module = importlib.util.module_from_spec(specification)
sys.modules[source.MODULE] = module
specification.loader.exec_module(module)

plugin = getattr(module, source.CLASS, None)
if not isinstance(plugin, type):
    raise ImportError(f"{source.MODULE}.py has no class {source.CLASS}")
globals()[source.CLASS] = plugin

# Tracebacks show lines of the source.
for loaded in list(sys.modules.values()):
    path = getattr(loaded, "__file__", None) or ""
    if path.startswith(source.ROOT):
        lines = linecache.getlines(path)
        linecache.cache[place(path)] = (sum(map(len, lines)), None, lines, path)
linecache.updatecache = lambda filename, module_globals=None: []


class TooLate(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        raise ModuleNotFoundError(
            f"No module named {name!r} here: import it at the top of the source, when the plugin is built", name=name
        )


sys.path.clear()
sys.path_hooks.clear()
sys.path_importer_cache.clear()
sys.meta_path.append(TooLate())
