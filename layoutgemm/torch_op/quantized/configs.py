"""Configurations of packed weights' kernels as text, which an operator's schema can hold."""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache

from ...errors import OperandError
from ...kernels.plan import present
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.quantized.feature_parts import FeatureParts
from ...kernels.streamed.plan import StreamedConfig
from ..compiled.constant_objects import constant_of_objects
from ..prepared import config_text
from ..scaled_grouped.operators import plain_config

PackedConfig = Sm90Config | StreamedConfig | FeatureParts
_STREAMED, _PARTS = "streamed", "parts"


def check_packed_config(config: object) -> None:
    """Raise OperandError for anything but a configuration of a kernel of packed weights, or None."""
    if config is not None and not isinstance(config, PackedConfig):
        raise OperandError(
            f"config is a {type(config).__qualname__}: an Sm90Config, a StreamedConfig, FeatureParts, or None to choose"
        )


@constant_of_objects
def packed_text(config: PackedConfig | None) -> str:
    """A configuration as text; "" for none.

    >>> packed_config_of(packed_text(StreamedConfig(warps=8))) == StreamedConfig(warps=8)
    True
    """
    if isinstance(config, StreamedConfig):
        return json.dumps({_STREAMED: dataclasses.asdict(config)})
    if isinstance(config, FeatureParts):
        return json.dumps({_PARTS: [[count, config_text(each)] for count, each in config.parts]})
    return config_text(config)


@lru_cache(1024)
def packed_config_of(text: str) -> PackedConfig | None:
    """The configuration of a text."""
    if text.startswith('{"' + _STREAMED):
        return StreamedConfig(**json.loads(text)[_STREAMED])
    if text.startswith('{"' + _PARTS):
        parts = [(count, present(plain_config(each))) for count, each in json.loads(text)[_PARTS]]
        return FeatureParts(tuple(parts))
    return plain_config(text)
