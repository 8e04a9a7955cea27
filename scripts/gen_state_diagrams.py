"""Writes the state diagrams of ARCHITECTURE.md from the tables in gateway/core/states.py.

python scripts/gen_state_diagrams.py            rewrite the page
python scripts/gen_state_diagrams.py --check    exit 1 if the page is out of date
"""

import argparse
import sys
from pathlib import Path

from gateway.core.states import BATCH_STATUS, MACHINES, Machine

PAGE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
BEGIN = "<!-- state diagrams: written by scripts/gen_state_diagrams.py -->"
END = "<!-- end of state diagrams -->"


def diagram(machine: Machine) -> str:
    """A Mermaid state diagram, in the order of the table; events that share both ends share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), target in machine.table.items():
        arrows.setdefault((str(state), str(target)), []).append(event)
    body = [f"    [*] --> {machine.initial}"]
    body += [f"    {start} --> {end}: {', '.join(events)}" for (start, end), events in arrows.items()]
    body += [f"    {state} --> [*]" for state in sorted(machine.final_states)]
    return "\n".join([f"**{machine.name}**", "", "```mermaid", "stateDiagram-v2", *body, "```", ""])


def section() -> str:
    """Everything between the two markers."""
    rows = [f"| {state} | {status} |" for state, status in BATCH_STATUS.items()]
    table = ["| order state | batch status |", "|---|---|", *rows, ""]
    return "\n".join([BEGIN, "", *(diagram(machine) for machine in MACHINES), *table, END])


def main() -> int:
    """Rewrite or check the page; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN), text.index(END) + len(END)
    wanted = text[:start] + section() + text[end:]
    if arguments.check:
        return 0 if wanted == text else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
