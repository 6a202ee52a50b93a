"""How the scripts here end where they cannot go on: status 2, and one line on stderr that says why."""

import contextlib
import importlib.util
import pathlib
import sys


def fail(why):
    line = " ".join(str(why).split())
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)
    print(f"{pathlib.Path(sys.argv[0]).name}: {shown}", file=sys.stderr)
    sys.exit(2)


def need(*packages):
    """Before the imports of packages that not every Python has."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"needs {', '.join(missing)} for Python: pip install {' '.join(missing)}")


@contextlib.contextmanager
def blaming(what):
    """Around what takes apart a file that someone else wrote, or uses a name that someone typed: whatever
    goes wrong there, the file or the name is at fault."""
    try:
        yield
    except Exception as error:  # parsers have classes of their own for what they do not like
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        if isinstance(error, KeyError):
            reason = f"no {error} in it"
        fail(f"{what}: {str(reason) or type(error).__name__}")


def run(main):
    """main(), whose SystemExit may carry the line."""
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            fail(end.code)
        raise
    except OSError as error:  # of what is written
        fail(f"{error.filename}: {error.strerror}" if error.filename else error)
