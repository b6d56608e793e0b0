"""Makes the checkpoint that is in this folder: ``python make.py FOLDER``, where dm-reverb 0.14 is installed."""

import os
import shutil
import sys

import numpy as np
import reverb
import tensorflow as tf

FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord", "DONE")


def table(name):
    """A table that keeps all items."""
    return reverb.Table(
        name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), 1000, reverb.rate_limiters.MinSize(1)
    )


def write_trajectories(client):
    """Three episodes of 8, 9 and 10 steps, for tables whose items have columns of different lengths."""
    for episode in range(3):
        with client.trajectory_writer(num_keep_alive_refs=6) as writer:
            for i in range(8 + episode):
                writer.append({"obs": np.array([episode, i, 0.5], np.float32), "act": np.int32(100 * episode + i)})
                obs, act = writer.history["obs"], writer.history["act"]
                if i >= 3 and i % 2 == 1:
                    writer.create_item("sequences", 1.0 + i, {"obs": obs[-4:], "act": act[-4:]})
                if i >= 2:
                    writer.create_item("stacks", 1.0, {"stack": obs[-3:], "act": act[-1]})
                if i >= 1:
                    writer.create_item("transitions", 1.0, {"obs": obs[-2], "act": act[-2], "then": obs[-1]})
            writer.flush()


def write_partial_steps(client):
    """A column that every second step has, and one of strings."""
    with client.trajectory_writer(num_keep_alive_refs=6) as writer:
        writer.configure(("y",), num_keep_alive_refs=6, max_chunk_length=2)
        for i in range(6):
            writer.append({"x": np.int64(i), "text": np.array("abc")}, partial_step=True)
            writer.append({"y": np.int64(-i)} if i % 2 else {})
            writer.create_item("texts", 1.0, {"text": writer.history["text"][-1]})
            if i % 2:
                writer.create_item("sparse", 1.0, {"y": writer.history["y"][-1]})
                if i >= 3:
                    writer.create_item("strides", 1.0, {"x": writer.history["x"][-3::2]})
        writer.flush()


def write_steps(client, name, delta_encoded):
    """Nine steps in chunks of three, by the old writer."""
    with client.writer(6, delta_encoded=delta_encoded, chunk_length=3) as writer:
        for i in range(9):
            writer.append([np.full(2, 1000 - 7 * i, np.int64), np.float64(i / 4), np.bool_(i in (4, 8))])
            if i >= 5 and i % 3 == 2:
                writer.create_item(name, 5, 1.0)  # the first step is in a chunk, but in no item


def main():
    """Writes to the folder that the command line names."""
    os.makedirs(sys.argv[1], exist_ok=True)
    names = ["sequences", "stacks", "transitions", "steps", "delta", "texts", "sparse", "strides"]
    root = reverb.platform.checkpointers_lib.TempDirCheckpointer()
    server = reverb.Server([table(name) for name in names], checkpointer=root)
    client = reverb.Client(f"localhost:{server.port}")
    write_trajectories(client)
    write_partial_steps(client)
    write_steps(client, "steps", delta_encoded=False)
    write_steps(client, "delta", delta_encoded=True)
    made = client.checkpoint()
    for file in FILES:
        shutil.copy(os.path.join(made, file), sys.argv[1])
    print(tf.__version__, made)


if __name__ == "__main__":
    main()
