"""Gives layouts, swizzled or not, their picture and their text."""

from __future__ import annotations

from layoutgemm.layouts.display import PicturedLayout, picture, table
from layoutgemm.view.svg import layout_svg
from layoutgemm.view.text.layouts import layout_table

picture.register(PicturedLayout)(layout_svg)
table.register(PicturedLayout)(layout_table)
