# SPDX-License-Identifier: Apache-2.0
"""A folder in which a job of a test writes checkpoints."""
import contextlib
import pathlib
import tempfile


class Saved:
    """A folder with a directory of checkpoints and a file of weights."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.dir = self.folder / 'checkpoints'
        self.weights = self.folder / 'weights'

    def files(self):
        """Oldest first."""
        return sorted(self.dir.glob('checkpoint-*.cddp'))

    def steps(self):
        return [int(p.stem.split('-')[1]) for p in self.files()]

    def unfinished(self):
        return list(self.dir.glob('.checkpoint*'))

    @classmethod
    @contextlib.contextmanager
    def place(cls):
        with tempfile.TemporaryDirectory(prefix='cddp-test-') as folder:
            yield cls(folder)
