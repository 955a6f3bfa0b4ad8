"""The CPU models and machine types that QEMU offers on a node."""

from __future__ import annotations

from typing import Any

_MODELS = {
    "default": ("host kvm32 kvm64 max qemu32 qemu64 x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4"),
    "GenuineIntel": (
        "486 Broadwell Broadwell-IBRS Broadwell-noTSX Broadwell-noTSX-IBRS Cascadelake-Server Cascadelake-"
        "Server-noTSX Cascadelake-Server-v2 Cascadelake-Server-v4 Cascadelake-Server-v5 ClearwaterForest "
        "Conroe Cooperlake Cooperlake-v2 core2duo coreduo GraniteRapids GraniteRapids-v2 GraniteRapids-v3 "
        "Haswell Haswell-IBRS Haswell-noTSX Haswell-noTSX-IBRS Icelake-Client Icelake-Client-noTSX Icelake-"
        "Server Icelake-Server-noTSX Icelake-Server-v3 Icelake-Server-v4 Icelake-Server-v5 Icelake-Server-v6 "
        "Icelake-Server-v7 IvyBridge IvyBridge-IBRS KnightsMill Nehalem Nehalem-IBRS Penryn pentium pentium2 "
        "pentium3 SandyBridge SandyBridge-IBRS SapphireRapids SapphireRapids-v2 SapphireRapids-v3 "
        "SapphireRapids-v4 SierraForest SierraForest-v2 SierraForest-v3 Skylake-Client Skylake-Client-IBRS "
        "Skylake-Client-noTSX-IBRS Skylake-Client-v4 Skylake-Server Skylake-Server-IBRS Skylake-Server-noTSX-"
        "IBRS Skylake-Server-v4 Skylake-Server-v5 Westmere Westmere-IBRS"
    ),
    "AuthenticAMD": (
        "athlon EPYC EPYC-Genoa EPYC-Genoa-v2 EPYC-IBPB EPYC-Milan EPYC-Milan-v2 EPYC-Milan-v3 EPYC-Rome "
        "EPYC-Rome-v2 EPYC-Rome-v3 EPYC-Rome-v4 EPYC-Rome-v5 EPYC-Turin EPYC-v3 EPYC-v4 EPYC-v5 Opteron_G1 "
        "Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 phenom"
    ),
}

# Flags that can be switched for a VM, and what they are good for.
_FLAGS = {
    "nested-virt": "Nested virtualization: svm on AMD, vmx on Intel. Migration needs the same flag on both sides.",
    "md-clear": "Lets the guest know whether MDS is mitigated.",
    "pcid": "Makes the Meltdown fix cheaper on Westmere, Sandy Bridge and Ivy Bridge.",
    "spec-ctrl": "Allows better Spectre mitigation with Intel CPUs.",
    "ssbd": "Protection against Speculative Store Bypass for Intel models.",
    "ibpb": "Allows better Spectre mitigation with AMD CPUs.",
    "virt-ssbd": "Basis of the protection against Speculative Store Bypass for AMD models.",
    "amd-ssbd": "Makes that protection cheaper with AMD CPUs; best with virt-ssbd.",
    "amd-no-ssb": "Tells the guest that the host is not vulnerable.",
    "pdpe1gb": "Lets the guest use pages of 1 GB, if the host has them.",
    "hv-tlbflush": "Better performance of overcommitted Windows guests.",
    "hv-evmcs": "Better performance of nested virtualization, on Intel only.",
    "aes": "The AES instruction set.",
}

_NEWEST_MACHINE = (10, 1)
_OLDEST_MACHINE = {"i440fx": (1, 4), "q35": (2, 4)}
# Versions that PVE added between those of QEMU, each on top of the one it is listed with.
_OWN_VERSIONS = {
    "9.2": {"9.2+pve1": "Disables High Precision Event Timer for Windows guests."},
    "4.1": {
        "4.1+pve2": "Increases the number of SCSI drives supported.",
        "4.1+pve1": "Introduction of pveX versioning, no changes.",
    },
}
_LAST_MINOR = {1: 7, 2: 12, 3: 1, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 1}


def cpu_models() -> list[dict[str, Any]]:
    return [
        {"name": name, "vendor": vendor, "custom": 0} for vendor, names in _MODELS.items() for name in names.split()
    ]


def cpu_flags() -> list[dict[str, str]]:
    return [{"name": name, "description": text} for name, text in _FLAGS.items()]


def machine_types() -> list[dict[str, str]]:
    """From the newest to the oldest, both chipsets."""
    rows = []
    for major in range(_NEWEST_MACHINE[0], 0, -1):
        for minor in range(_LAST_MINOR[major], -1, -1):
            version = f"{major}.{minor}"
            kinds = [kind for kind, oldest in _OLDEST_MACHINE.items() if oldest <= (major, minor)]
            for own, changes in _OWN_VERSIONS.get(version, {}).items():
                rows += [_machine(kind, own) | {"changes": changes} for kind in kinds]
            rows += [_machine(kind, version) for kind in kinds]
    return rows


def _machine(kind: str, version: str) -> dict[str, str]:
    return {"id": f"pc-{kind}-{version}", "type": kind, "version": version}
