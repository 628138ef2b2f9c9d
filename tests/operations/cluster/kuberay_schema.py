"""What KubeRay takes as a RayJob (ray.io/v1): its fields, their types, which of them must be there, and no others.

rayjob_schema.json is from the Go types that KubeRay makes its CRD of (ray-operator/apis/ray/v1, rayjob_types.go and
raycluster_types.go, at 0057210e and 026f1433). Pods are Kubernetes' own: kubernetes-validate has their schemas. What is a
plain object there is not looked into, for we write none of it.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

KUBERNETES = "1.37.0"  # the newest that kubernetes-validate knows
RAY_JOB = json.loads(Path(__file__).with_name("rayjob_schema.json").read_text())


def validate(job: dict[str, Any]) -> None:
    """Raises ValidationError with the field that is wrong."""
    jsonschema.validate(job, RAY_JOB, cls=jsonschema.Draft202012Validator)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": job["metadata"], "template": group["template"]}
        kubernetes_validate.validate(pods, KUBERNETES, strict=True)
