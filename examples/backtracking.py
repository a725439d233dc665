"""A search that backtracks by branching a live session.

    python examples/backtracking.py

Six queens on a board, none attacking another. The board lives inside the sandbox and is only ever changed there. To
try a move, the session that holds the board is branched and the move is made in the branch. A branch that leads
nowhere is closed, and its parent is as it was: nothing has to be undone.

With a board of queens this is a toy. With a session that has loaded a data set, trained a model or built a project,
and a language model that proposes the next cell, it is a search over continuations that costs a fork each.
"""

from __future__ import annotations

import belljar

SIZE = 6

SET_UP = f"""
size, queens = {SIZE}, []

def place(column):
    row = len(queens)
    if any(c == column or abs(c - column) == row - r for r, c in enumerate(queens)):
        raise ValueError("attacked")
    queens.append(column)
    with open("moves.txt", "a") as log:
        print(row, column, file=log)

def show():
    for column in queens:
        print("".join("Q" if each == column else "." for each in range(size)))
"""


def search(session: belljar.Session, row: int, tried: list[int]) -> belljar.Session | None:
    """A session whose board is complete, or None if this one has no solution. The caller closes it."""
    if row == SIZE:
        return session
    for column in range(SIZE):
        (attempt,) = session.branch()
        tried.append(column)
        if attempt.run(f"place({column})").ok:
            found = search(attempt, row + 1, tried)
            if found is not None:
                if found is not attempt:
                    attempt.close()  # the solution no longer needs its parent
                return found
        attempt.close()
    return None


def main() -> None:
    """Search, and show the board and the log of the branch that has it."""
    with belljar.Sandbox() as box, box.session() as root:
        root.run(SET_UP)
        tried: list[int] = []
        solved = search(root, 0, tried)
        assert solved is not None
        print(solved.run("show()").stdout, end="")
        print(f"{len(tried)} branches; the one that is left has made these moves:")
        print(solved.read_file("moves.txt").decode(), end="")
        print("and the session it all began with:", root.run("print(queens)").stdout, end="")
        solved.close()


if __name__ == "__main__":
    main()
