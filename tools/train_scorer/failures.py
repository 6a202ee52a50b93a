"""How the scripts here end where they cannot go on: status 2, and one line on stderr that says why."""

import argparse
import contextlib
import importlib.util
import pathlib
import re
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


class Parser(argparse.ArgumentParser):
    """What it does not like is one line, too."""

    def __init__(self, **more):
        super().__init__(formatter_class=argparse.ArgumentDefaultsHelpFormatter, **more)

    def error(self, message):
        fail(message)


def whole(low, high=1 << 24):
    """For argparse: a whole number of `low` to `high`."""
    def parse(text):
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: want a whole number of {low} to {high}")
        return int(text)
    return parse


def number(low, high):
    """For argparse: a number of `low` to `high`; NaN is none."""
    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: want a number of {low} to {high}")
        return value
    return parse


SEED = whole(0, (1 << 63) - 1)
TOKEN = whole(0, (1 << 31) - 1)
TOKEN_OR_NONE = whole(-1, (1 << 31) - 1)  # -1: none


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
