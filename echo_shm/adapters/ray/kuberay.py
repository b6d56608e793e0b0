"""``python -m echo_shm.adapters.ray.kuberay`` prints a RayCluster for KubeRay, whose pods have room in ``/dev/shm``."""

from pathlib import Path

#: The manifest. Its comments say what to set.
MANIFEST = Path(__file__).with_name("kuberay.yaml")

if __name__ == "__main__":
    print(MANIFEST.read_text(encoding="utf-8"), end="")
