"""The manifest for KubeRay.

KubeRay's own fields are checked against a schema below, written after its types (apiVersion ray.io/v1): what it names
is there, has that type, and nothing else is. Pods' fields are checked against Kubernetes' own schema.
"""

import re

from harness.packages import need
from harness.programs import run_python

need("ray")
need("kubernetes_validate", "jsonschema", "yaml")

import jsonschema  # noqa: E402
import kubernetes_validate  # noqa: E402
import pytest  # noqa: E402
import yaml  # noqa: E402

from echo_shm.adapters.ray.kuberay import MANIFEST  # noqa: E402

#: The version of Kubernetes whose schema is used.
KUBERNETES = "1.30.0"


def an_object(required, **optional):
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
PARAMS = {"type": "object", "additionalProperties": {"type": "string"}}
POD = {"type": "object"}  # by Kubernetes' own
HEAD = an_object({"template": POD, "rayStartParams": PARAMS})
WORKERS = an_object(
    {"groupName": TEXT, "minReplicas": COUNT, "maxReplicas": COUNT, "template": POD, "rayStartParams": PARAMS},
    replicas=COUNT,
)
CLUSTER = an_object({
    "apiVersion": {"const": "ray.io/v1"},
    "kind": {"const": "RayCluster"},
    "metadata": an_object({"name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}}),
    "spec": an_object({"headGroupSpec": HEAD}, rayVersion=TEXT, workerGroupSpecs={"type": "array", "items": WORKERS}),
})  # fmt: skip


def check(cluster):
    """Raises an error if it is not what KubeRay and Kubernetes take."""
    jsonschema.validate(cluster, CLUSTER)
    for group in groups(cluster):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def groups(cluster):
    """The head's and the workers'."""
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


def octets(text):
    """A quantity of Kubernetes' in Gi."""
    (number,) = re.fullmatch(r"(\d+)Gi", text).groups()
    return int(number) << 30


def test_the_manifest_is_valid():
    """What the module prints is, and what is wrong in either schema is noticed."""
    printed = run_python("import runpy; runpy.run_module('echo_shm.adapters.ray.kuberay', run_name='__main__')").stdout
    assert printed == MANIFEST.read_text()
    check(yaml.safe_load(printed))
    for wrong in (
        ("rayStartParams", "rayStartParameters"),
        ('"200000000"', "200000000"),  # a number
        ("maxReplicas", "mostReplicas"),
        ("mountPath", "path"),
        ("sizeLimit", "limit"),
        ("runAsUser: 1000", "runAsUser: ray"),
    ):
        with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
            check(yaml.safe_load(printed.replace(*wrong)))


def test_each_pod_has_shared_memory_that_is_counted():
    """A volume in memory is mounted at /dev/shm; requests and limits have room for it, for processes, and for Ray."""
    cluster = yaml.safe_load(MANIFEST.read_text())
    for group in groups(cluster):
        (container,) = group["template"]["spec"]["containers"]
        (volume,) = group["template"]["spec"]["volumes"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dev/shm"}]
        assert volume["emptyDir"]["medium"] == "Memory"
        size, resources = octets(volume["emptyDir"]["sizeLimit"]), container["resources"]
        assert resources["requests"] == resources["limits"]
        assert octets(resources["limits"]["memory"]) >= size + (2 << 30)
        assert int(group["rayStartParams"]["object-store-memory"]) < size // 8
        assert container["image"].endswith(":" + cluster["spec"]["rayVersion"])
