"""For mkdocstrings, after ``unpack_typeddict``: an optional argument is documented once, with its type.

The extension adds the keys of ``Unpack[TypedDict]`` to parameters that the docstring describes already.
"""

from griffe import DocstringSectionKind, Extension, Function


class MergeParameters(Extension):
    """Gives described parameters the types of their duplicates, which are removed."""

    def on_function(self, *, func: Function, **kwargs: object) -> None:
        """Changes the parsed docstring of a function with unpacked arguments."""
        unpacked = any(parameter.default == "..." for parameter in func.parameters)
        for section in func.docstring.parsed if func.docstring and unpacked else ():
            if section.kind is DocstringSectionKind.parameters:
                found = {}
                for parameter in section.value:
                    first = found.setdefault(parameter.name, parameter)
                    first.annotation = first.annotation or parameter.annotation
                section.value[:] = found.values()
