"""Demos of planning: ``python -m echo_shm.planning.examples.latent_planning_demo --plot``. Read one, and change it.

Each runs for less than a minute on two cores, and prints what it has measured; with ``--plot`` it draws that, too.
``train_echo_rl`` and ``benchmark_echo_rl`` have EchoRL's options. ``pip install 'echo-shm[planning-examples]'`` brings
what they need.
"""
