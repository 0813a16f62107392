"""A plan for an input that is not held: what ``cleanpairs rematch`` does with many rows."""

from __future__ import annotations

from cleanpairs.commands.rematch.out_of_core import STREAMED_ROWS, StreamedPlan, plan_stream

__all__ = ["STREAMED_ROWS", "StreamedPlan", "plan_stream"]
