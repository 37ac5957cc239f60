"""A model inside an archive: pak.py ARCHIVE OFFSET LENGTH."""
import sys

from foredraft import Engine

archive, offset, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# ANCHOR: pak
with open(archive, "rb") as file:
    engine = Engine({"fd": file.fileno(), "offset": offset, "length": length})
# ANCHOR_END: pak
with engine:
    print(engine.complete("Once upon a time", n_predict=20, temperature=0))
