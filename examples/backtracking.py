"""A search that backtracks by branching a live session.

    python examples/backtracking.py

Places six queens on a board so that none attacks another. The board lives inside the sandbox and is only changed
there. To try a move, the session that holds the board is branched, and the move is made in the branch. A branch that
leads nowhere is closed; its parent is unchanged, so nothing has to be undone.

A board of queens is a toy. The same search works with a session that has loaded a data set, trained a model or built a
project, and a language model that proposes the next cell: each attempt costs one fork.
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
    """Return a session whose board is complete, or None if there is no solution. The caller closes it."""
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
    """Search, and print the board and the log of the branch that has the solution."""
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
