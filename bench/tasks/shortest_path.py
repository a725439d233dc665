from collections import deque


def shortest(maze):
    cells = {(row, column): sign for row, line in enumerate(maze) for column, sign in enumerate(line)}
    start = next(place for place, sign in cells.items() if sign == "S")
    queue, steps = deque([start]), {start: 0}
    while queue:
        row, column = here = queue.popleft()
        if cells[here] == "E":
            return steps[here]
        for there in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if cells.get(there, "#") != "#" and there not in steps:
                steps[there] = steps[here] + 1
                queue.append(there)
    return None


assert shortest(["S.#", ".##", "..E"]) == 4
assert shortest(["SE"]) == 1
assert shortest(["S#E"]) is None
