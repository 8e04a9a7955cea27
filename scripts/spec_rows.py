"""Prints every row of the specification with the tests that cover it; exits with 1 while a row has none.

python scripts/spec_rows.py            all rows
python scripts/spec_rows.py --check    only what is wrong
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from specification import Row, covering, rows


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    known = rows()
    tests: dict[Row, list[str]] = defaultdict(list)
    for found, test in covering():
        tests[found].append(test)
    unknown = [found for found in tests if found not in known]
    uncovered = [found for found in known if found not in tests]
    if not arguments.check:
        table = ""
        for found, rule in known.items():
            if found[0] != table:
                table = found[0]
                print(f"\n{table}")
            print(f"  {found[1]}: {rule}")
            for test in tests[found] or ["NO TEST"]:
                print(f"      {test}")
    for found in unknown:
        print(f"no such row: {found[0]}: {found[1]} ({tests[found][0]})", file=sys.stderr)
    for found in uncovered:
        print(f"no test covers: {found[0]}: {found[1]}", file=sys.stderr)
    count = len({test for found in tests.values() for test in found})
    print(f"{len(known)} rows, {len(known) - len(uncovered)} covered, by {count} tests")
    return 1 if unknown or uncovered else 0


if __name__ == "__main__":
    sys.exit(main())
