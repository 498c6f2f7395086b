"""Implementations on Metal; the plugin offers what it finds here, file by file."""

from __future__ import annotations
