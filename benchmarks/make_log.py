#!/usr/bin/env python3
"""Writes a large interaction log as CSV: user_id,item_id,timestamp with string ids, sorted by time.

    benchmarks/make_log.py log.csv                    20 million rows, 200,000 users, 100,000 items (about 0.6 GB)
    benchmarks/make_log.py log.csv --rows 1000000     a smaller one

Item popularity falls off as rank^-0.8, users are equally active; the same arguments give the same file. The reader's
speed and memory are then, for instance:

    /usr/bin/time -v prism data log.csv --json
"""

import argparse
import itertools
import random


def write_log(path: str, rows: int, users: int, items: int, seed: int) -> None:
    stream = random.Random(seed)
    popularity = list(itertools.accumulate((rank + 1) ** -0.8 for rank in range(items)))
    user_ids = [f"user_{number:06d}" for number in stream.sample(range(10 * users), users)]
    item_ids = [f"item_{number:07d}" for number in stream.sample(range(10 * items), items)]
    time, block = 1_600_000_000_000, 100_000
    with open(path, "w", encoding="ascii") as out:
        out.write("user_id,item_id,timestamp\n")
        for begin in range(0, rows, block):
            count = min(block, rows - begin)
            chosen_users = stream.choices(user_ids, k=count)
            chosen_items = stream.choices(item_ids, cum_weights=popularity, k=count)
            times = range(time, time + 700 * count, 700)
            time += 700 * count
            out.writelines(f"{u},{i},{t}\n" for u, i, t in zip(chosen_users, chosen_items, times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write_log(arguments.path, arguments.rows, arguments.users, arguments.items, arguments.seed)


if __name__ == "__main__":
    main()
