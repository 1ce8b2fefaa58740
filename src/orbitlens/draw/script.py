"""ES modules -> one script for a page that stands alone.

Enters: the path of a module and a reader of modules. Leaves: one script. Modules import each other
by relative paths, as a browser would take them from a server; a file opened from a disk may not, so
each becomes a function that returns its exports, called once, what it imports before it. Names of
one module cannot reach another, and the result depends on nothing but the text of the modules.
Import maps or blob addresses would need a wider content policy, and a bundler from elsewhere
another language's tools.
"""

import posixpath
import re
from collections.abc import Callable

IMPORT = re.compile(r"^import \{ ([\w, ]+) \} from '(\.[\w./]+)';$", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:const|function) (\w+))", re.MULTILINE)


def bundle(entry: str, read: Callable[[str], str]) -> str:
    r"""Return a module with all that it imports as one script.

    >>> texts = {"a.js": "import { b } from './b.js';\nb();", "b.js": "export const b = () => 1;"}
    >>> print(bundle("a.js", texts.__getitem__))
    const $0 = (() => {
    const b = () => 1;
    return { b };
    })();
    (() => {
    const { b } = $0;
    b();
    })();

    Raises:
        ValueError: a module imports a name that the other does not export, or in a form that this
            function does not know.
    """
    names: dict[str, str] = {}
    exports: dict[str, set[str]] = {}
    return "\n".join([*_modules(entry, read, names, exports)])


def _modules(
    path: str, read: Callable[[str], str], names: dict[str, str], exports: dict[str, set[str]]
) -> list[str]:
    text = read(path)
    made: list[str] = []
    for wanted, other in IMPORT.findall(text):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), other))
        if place not in names:
            made += _modules(place, read, names, exports)
            names[place] = f"${len(names)}"
            made[-1] = f"const {names[place]} = {made[-1]}"
        unknown = {name.strip() for name in wanted.split(",")} - exports[place]
        if unknown:
            raise ValueError(f"{path}: {place} does not export {', '.join(sorted(unknown))}.")
        text = text.replace(
            f"import {{ {wanted} }} from '{other}';", f"const {{ {wanted} }} = {names[place]};"
        )
    exports[path] = set(EXPORT.findall(text))
    body = EXPORT.sub("", text).strip()
    if re.search(r"^(import|export)\b", body, re.MULTILINE) or "</script" in body.lower():
        raise ValueError(f"{path}: expected `import {{ a }} from './b.js'` and `export const a`.")
    given = f"\nreturn {{ {', '.join(sorted(exports[path]))} }};" if exports[path] else ""
    return [*made, f"(() => {{\n{body}{given}\n}})();"]
