"""Tasks, plain and async: enqueued, run, retried, and their results.

python tasks.py

Here the same process runs the jobs, and ends when there is nothing left to do.
Usually workers run them, in other processes: python -m casque.worker tasks:app
"""

import logging
from datetime import timedelta

from casque import App, Backoff, CasqueError, Discard, current_job

app = App("sqlite:///jobs.db")


@app.task
def shout(text: str, times: int = 1) -> str:
    return text.upper() + "!" * times


@app.task(max_attempts=3, backoff=Backoff(base=timedelta(0)))  # retry at once, to keep this short
async def fetch_price(item: str) -> int:
    if item == "unicorn":
        raise LookupError("no shop has one")
    if item == "yesterday's paper":
        raise Discard("nobody wants it any more")
    if current_job().attempt == 1:
        raise ConnectionError("the shop does not answer")
    return 40


def main() -> None:
    logging.getLogger("casque").setLevel(logging.CRITICAL)  # INFO would log each job
    handles = {
        "shout": shout.enqueue("hello", times=3),
        "helmet": fetch_price.enqueue("helmet"),
        "unicorn": fetch_price.using(id="unicorn").enqueue("unicorn"),
        "paper": fetch_price.using(id="paper", priority=10).enqueue("yesterday's paper"),
    }
    app.work(until_idle=True)
    for name, handle in handles.items():
        try:
            print(f"{name}: {handle.result()!r}, attempt {handle.job().attempts}")
        except CasqueError as error:
            print(f"{name}: {error}")
    app.close()


if __name__ == "__main__":
    main()
