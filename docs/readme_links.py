"""The README as PyPI shows it: relative links and pictures become addresses in the repository.

A metadata hook of hatchling, which runs when the package is built or installed.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def absolute(text: str, repository: str) -> str:
    """Markdown whose relative links are below `repository`, pictures as raw files."""

    def replaced(match: re.Match[str]) -> str:
        mark, label, path = match.groups()
        place = (
            repository.replace("github.com", "raw.githubusercontent.com") + "/main"
            if mark
            else f"{repository}/blob/main"
        )
        return f"{mark}[{label}]({place}/{path})"

    return _LINK.sub(replaced, text)


class ReadmeLinks(MetadataHookInterface):
    """Gives the metadata their `readme`."""

    def update(self, metadata: dict[str, object]) -> None:
        """Sets `readme` of the project's metadata."""
        urls = metadata["urls"]
        assert isinstance(urls, dict)
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, urls["Repository"])}
