"""Compilation for devices that this machine lacks: the devices, the programs, and the compilers' reports."""
