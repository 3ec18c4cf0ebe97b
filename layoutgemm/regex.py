"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from typing import cast


class LatePattern:
    """A regular expression's text; each method is the compiled pattern's."""

    def __init__(self, text: str, flags: int | re.RegexFlag) -> None:
        self.pattern, self.flags = text, flags

    def __getattr__(self, name: str) -> object:
        # Python keeps compiled patterns, so the second method compiles nothing.
        value = getattr(re.compile(self.pattern, self.flags), name)
        setattr(self, name, value)
        return value


def regex(text: str, flags: int | re.RegexFlag = 0) -> re.Pattern[str]:
    """`re.compile`, at the first use: compiling all at import took half of `import layoutgemm`.

    >>> regex(r"(\\d+)x(\\d+)").fullmatch("64x128").groups()
    ('64', '128')
    """
    return cast("re.Pattern[str]", LatePattern(text, flags))
