"""Epilogues: functions of the accumulators that a kernel computes before it stores C."""
