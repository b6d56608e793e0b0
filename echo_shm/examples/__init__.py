"""Programs that learn: ``python -m echo_shm.examples.ppo``. Read one from top to bottom, copy it, change it.

``ppo``, ``dqn`` and ``impala`` need PyTorch, ``jax_ppo`` needs JAX, ``atari`` needs the Atari games:
``pip install 'echo-shm[examples]'`` brings them all.
"""
