"""Pools of OOD classes for levels of severity."""
