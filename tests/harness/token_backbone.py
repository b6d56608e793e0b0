"""A backbone for tests: its logits are a function of the context, which it reads from its blocks alone."""

import threading
import zlib

import numpy as np


class TokenBackbone:
    """Keeps the tokens themselves in its blocks, so a wrong block gives another answer. A context can make it fail."""

    def __init__(self, num_blocks=64, block_size=4, max_length=200, vocab_size=257):
        self.vocab_size, self.max_length = vocab_size, max_length
        self.block_size, self.num_blocks, self.block_bytes = block_size, num_blocks, 8 * block_size
        self.kept = np.full((num_blocks, block_size), -1)
        self.salt = 0
        self.calls = []
        #: Closed: calls wait for it.
        self.gate = threading.Event()
        self.gate.set()

    def logits(self, context):
        """The logits after a context, a list of tokens."""
        seed = zlib.crc32(np.array([self.salt, *context], np.int64).tobytes())
        return np.random.default_rng(seed).normal(0, 3, self.vocab_size).astype(np.float32)

    def extend(self, parts):
        """Writes and reads as the protocol says."""
        self.calls.append([(part.start, len(part.tokens)) for part in parts])
        assert self.gate.wait(30)
        rows = []
        for part in parts:
            places = np.arange(part.start + len(part.tokens))
            blocks = part.blocks[places // self.block_size]
            self.kept[blocks[part.start :], places[part.start :] % self.block_size] = part.tokens
            context = self.kept[blocks, places % self.block_size].tolist()
            text = bytes(token for token in context if 0 <= token < 256)
            if b"!raise" in text:
                raise ZeroDivisionError("of the backbone")
            rows.append(self.logits(context))
            if b"!nan" in text:
                rows[-1][3] = np.nan
            if b"!shape" in text:
                rows = [row[:-1] for row in rows]
            if b"!hang" in text:
                self.gate.clear()
                self.gate.wait(30)
        return np.array(rows)
