"""`python -m tests.hostile JSON`: one attack; see `tests.hostile.attacks`."""

import sys

from tests.hostile import places
from tests.hostile.attacks import main

assert places.SOURCES, "its attacks are known by being loaded"
main(sys.argv[1])
