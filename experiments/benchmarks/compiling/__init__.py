"""Compiling for devices that are not there: which there are, programs to compile, what the compilers say of them."""
