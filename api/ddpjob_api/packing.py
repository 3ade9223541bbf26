"""A document as one short word, for a line of a log, and back.

Why apart: container runtimes cut lines at 16 KiB, and what a pod that has ended knew can only be read from its log.
"""

import base64
import json
import zlib
from typing import Any

MAX_WORD_BYTES = 12 * 1024
"""Of a word; its line has a head, and container runtimes cut lines at 16 KiB."""
MAX_UNPACKED_BYTES = 16 * 1024 * 1024


def pack_document(document: object) -> str:
    """JSON, compressed, in letters."""
    text = json.dumps(document, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(text, 9)).decode()


def unpack_document(word: str) -> Any:
    """What was packed.

    Raises:
        ValueError: it is something else.
    """
    try:
        packed = base64.b64decode(word, validate=True)
        return json.loads(zlib.decompressobj().decompress(packed, MAX_UNPACKED_BYTES))
    except zlib.error as error:
        raise ValueError(str(error)) from error
