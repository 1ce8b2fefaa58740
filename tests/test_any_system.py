"""The classifier says any system: nothing that only Unix has is needed to import orbitlens."""

import subprocess
import sys

UNIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
UNIX_CALLS = ("fork", "forkpty", "register_at_fork", "sysconf", "getuid", "geteuid", "uname")
UNIX_CALLS += ("sched_getaffinity", "setsid", "nice", "killpg", "getloadavg", "mkfifo")
CODE = """
import importlib, os, pkgutil, sys

def import_all():
    import orbitlens
    for module in pkgutil.walk_packages(orbitlens.__path__, "orbitlens."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sum(name.startswith("orbitlens.") for name in sys.modules)

import_all()  # other packages stay imported: theirs differ from system to system
for name in [name for name in sys.modules if name.split(".")[0] == "orbitlens"]:
    del sys.modules[name]
for name in {modules}:
    sys.modules[name] = None
for name in {calls}:
    if hasattr(os, name):
        delattr(os, name)
print(import_all())
"""


def imported_without(modules, calls=()):
    code = CODE.format(modules=list(modules), calls=list(calls))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_every_module_is_imported_where_unix_is_missing():
    done = imported_without(UNIX_MODULES, UNIX_CALLS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_module_that_is_needed_is_noticed_when_it_is_missing():
    """The control."""
    done = imported_without(["secrets"])
    assert done.returncode == 1
    assert "import of secrets halted" in done.stderr
