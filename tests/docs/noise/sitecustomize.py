"""The noise source of the documentation's examples. FOR TESTS ONLY: it can be predicted.

With this folder on PYTHONPATH every program of an example draws "random" bytes from its own command line, so
that the outputs printed in the pages can be compared byte for byte.
"""

import hashlib
import itertools
import os
import sys

_words = [os.path.basename(sys.orig_argv[1]), *sys.orig_argv[2:]] if len(sys.orig_argv) > 1 else []
_seed = "\0".join([os.environ.get("EVERTALLY_DOCS_REPEAT", "0"), *_words]).encode()
_draws = itertools.count()


def _urandom(size: int) -> bytes:
    return hashlib.shake_256(_seed + b"\0" + str(next(_draws)).encode()).digest(size)


os.urandom = _urandom
