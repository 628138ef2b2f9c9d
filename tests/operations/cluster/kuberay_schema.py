"""What KubeRay takes as a RayJob (ray.io/v1): its fields, their types, which of them must be there, and no others.

From the Go types that KubeRay makes its CRD of (ray-operator/apis/ray/v1, rayjob_types.go and raycluster_types.go, at
0057210e and 026f1433). Pods are Kubernetes' own: kubernetes-validate has their schemas. Not here, for we write none of it:
what stands in `object` below.
"""

from typing import Any

import jsonschema
import kubernetes_validate

KUBERNETES = "1.37.0"  # the newest that kubernetes-validate knows
STRING, BOOLEAN, NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "number"}
INT32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
TEXTS = {"type": "object", "additionalProperties": STRING}  # map[string]string
OBJECT = {"type": "object"}


def structure(fields: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


GROUP = {"rayStartParams": TEXTS, "template": OBJECT}
HEAD = structure(
    {**GROUP, "serviceType": STRING, "headService": OBJECT, "enableIngress": BOOLEAN}, "rayStartParams", "template"
)
COUNTS = dict.fromkeys(("replicas", "minReplicas", "maxReplicas", "numOfHosts"), INT32)
WORKERS = structure(
    {**GROUP, **COUNTS, "groupName": STRING, "scaleStrategy": OBJECT},
    *("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
)
CLUSTER = structure(
    {
        "workerGroupSpecs": {"type": "array", "items": WORKERS}, "headGroupSpec": HEAD, "rayVersion": STRING, "suspend": BOOLEAN,
        "enableInTreeAutoscaling": BOOLEAN, "autoscalerOptions": OBJECT, "headServiceAnnotations": TEXTS,
    },
    "headGroupSpec",
)  # fmt: skip
SPEC = structure(
    {
        **dict.fromkeys(("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"), INT32),
        **dict.fromkeys(("entrypoint", "runtimeEnvYAML", "jobId", "entrypointResources", "schedule"), STRING),
        **dict.fromkeys(("shutdownAfterJobFinishes", "suspend"), BOOLEAN),
        **dict.fromkeys(("entrypointNumCpus", "entrypointNumGpus"), NUMBER),
        **dict.fromkeys(("metadata", "clusterSelector"), TEXTS),
        **dict.fromkeys(("submitterPodTemplate", "submitterConfig", "deletionStrategy"), OBJECT),
        "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        "managedBy": {"enum": ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]},
        "rayClusterSpec": CLUSTER,
    }
)
RAY_JOB = structure(
    {"apiVersion": {"const": "ray.io/v1"}, "kind": {"const": "RayJob"}, "metadata": OBJECT, "spec": SPEC},
    *("apiVersion", "kind", "metadata", "spec"),
)


def validate(job: dict[str, Any]) -> None:
    """Raises ValidationError with the field that is wrong."""
    jsonschema.validate(job, RAY_JOB, cls=jsonschema.Draft202012Validator)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": job["metadata"], "template": group["template"]}
        kubernetes_validate.validate(pods, KUBERNETES, strict=True)
