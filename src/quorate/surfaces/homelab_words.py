"""What people call the operations around the clusters; see `words`."""

from __future__ import annotations

HOMELAB_SAID: dict[str, str] = {
    "device_decommission": "retire decommission remove take out of service host device migrate move containers away",
    "device_update": "change update device configuration service restart container image hostname ssh security",
    "infra_apply": "apply deploy infrastructure declarative document desired state converge resume roll out",
    "infra_backup": "backup configuration of hosts devices archive compose network cron sshd packages before change",
    "infra_plan": "infrastructure diff what would change desired state drift preview plan declarative",
    "infra_rollback": "roll back restore undo infrastructure changes configuration backup revert",
    "infra_scale": "scale replicas copies more instances of container workload or guest up down",
    "infra_validate": "validate check infrastructure document schema dependencies ports capacity conflicts",
    "host_admin_groups": "add administration account to group docker lxd libvirt kvm incus usermod",
    "host_admin_remove": "remove administration account undo admin user take away revoke key sudo",
    "host_admin_setup": "create administration account admin user ssh key sudo passwordless automation setup mcp admin",
    "host_admin_verify": "check administration account works sudo key login docker kvm usable",
    "host_discover": (
        "find out what hardware is in the nas raspberry pi server tower host inventory discover specs cpu memory disks "
        "gpu gpus usb pci network which ports are open listening containers services uptime operating system kernel"
    ),
    "host_exec": "run command on host server nas raspberry pi over ssh shell sudo as root execute df uptime bash",
    "host_export": "ansible inventory of registered hosts export servers playbook",
    "host_job": "long running command host background done yet finished output exit code stop kill",
    "host_list": "hosts servers machines registered ssh which hosts do I have list servers labels",
    "host_register": "add register host server machine ssh login new raspberry pi nas",
    "host_remove": "forget unregister remove host server from the list",
    "host_shell_open": "interactive shell terminal console web ssh session browser link for the person",
    "host_update": "change host address port user key label rename display name deactivate",
    "host_verify": "test login ssh works reachable check credentials verify connection",
    "workload_deploy": (
        "run deploy launch docker container on raspberry pi nas with podman lxd incus image pull ports volumes upgrade"
    ),
    "workload_get": "container on host status health ports mounts limits restarts image digest inspect docker",
    "workload_list": "containers on host docker ps podman lxc list incus what runs on this server",
    "workload_logs": "container on host logs output docker logs podman why does it crash",
    "workload_power": "start stop restart container on host docker podman lxd incus",
    "workload_remove": "delete remove container on host docker rm podman lxc delete",
    "network_analyze": "analyse topology problems duplicate ip mac single point of failure full disks old kernel attention",
    "network_changes": "what changed history devices new gone since yesterday difference appeared disappeared network",
    "network_discover": "discover many hosts inventory all machines scan hardware bulk refresh map whole homelab",
    "network_map": "map sitemap topology picture diagram draw network devices segments subnet svg png mermaid overview",
    "network_scan": "scan subnet network ports open nmap arp find devices ip addresses who is on my lan",
    "network_suggest": "where to put deploy place suggest host free resources room capacity best machine for a service",
    "script_info": "community script helper-scripts tteck what does this script need show its text",
    "script_run": "community script helper-scripts tteck install an app by script one click",
    "script_search": "community scripts helper-scripts tteck find a script for an app catalogue",
    "terraform_export": "terraform opentofu tofu hcl export import existing guests vms containers as code bpg iac",
    "ansible_check": "try playbook ansible check mode dry run diff what would change on host",
    "ansible_run": "run playbook ansible tags extra vars provision configure host install by ansible",
    "service_check": "can this host run service requirements ports free memory disk architecture docker compose fits",
    "service_info": "what does a service need settings parameters health check backup paths catalogue entry details",
    "service_install": (
        "install deploy service app on host docker compose pihole jellyfin home assistant nextcloud immich gitea "
        "grafana prometheus traefik vaultwarden ollama k3s self-hosted new container vm for it"
    ),
    "service_list": "which services can be installed catalogue apps self-hosted list installed where",
    "service_status": "is the service healthy running version drift what is installed on host compose project",
    "service_uninstall": "remove uninstall service app from host delete data compose down",
    "service_upgrade": "update upgrade service app to new version image pull roll back",
    "terraform_apply": "apply terraform opentofu tofu plan carry out saved plan",
    "terraform_destroy": "terraform opentofu destroy everything it made tear down",
    "terraform_plan": "terraform opentofu tofu plan what would be created changed destroyed",
    "terraform_refresh": "terraform opentofu drift refresh state differs from reality",
}
