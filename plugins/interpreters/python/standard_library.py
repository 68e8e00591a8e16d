"""What code may import. It has to be imported before the component is made: there are no files to load it from
afterwards. Left out is what needs sockets, processes, threads, a terminal or a package manager."""

import gc
import importlib

MODULES = """
    __future__ _strptime abc argparse array ast base64 binascii bisect builtins calendar cmath codecs collections
    collections.abc colorsys contextlib contextvars copy copyreg csv dataclasses datetime decimal difflib dis
    enum errno fnmatch fractions functools gc getopt glob graphlib gzip hashlib heapq hmac html html.entities
    html.parser importlib importlib.util inspect io ipaddress itertools json json.tool keyword linecache locale logging
    marshal math numbers opcode operator os os.path pathlib pickle pickletools platform posixpath pprint queue random re
    reprlib sched secrets shlex shutil stat statistics string string.templatelib stringprep struct symtable sys sysconfig
    tempfile textwrap threading time timeit token tokenize tomllib traceback types typing unicodedata unittest
    urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo
    _pylong _pydatetime _pydecimal
    encodings.ascii encodings.charmap encodings.cp1252 encodings.cp437 encodings.hex_codec encodings.base64_codec
    encodings.idna encodings.latin_1 encodings.iso8859_1 encodings.punycode encodings.raw_unicode_escape encodings.rot_13
    encodings.unicode_escape encodings.utf_16 encodings.utf_16_be encodings.utf_16_le encodings.utf_32
    encodings.utf_32_be encodings.utf_32_le encodings.utf_8 encodings.utf_8_sig
""".split()

for name in MODULES:
    importlib.import_module(name)

# What was made up to here is never looked at again by the collector, so that sessions share it.
gc.collect()
gc.freeze()
