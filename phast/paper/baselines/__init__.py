"""Sequence models and other tools that the study compares with."""
