"""What people call things and doings, so that plain words find operations."""

from __future__ import annotations

from quorate.surfaces.homelab_words import HOMELAB_SAID

EMPTY = (
    "a about actually again all also always am an and any are arent around as at be been being belongs between "
    "both but by called can cant could currently d did didnt do does doesnt doing dont during each every five for "
    "four from get gets getting give gives go going got had has have havent hello hey hi how i id if ill im in "
    "into is isnt it its itself ive just kind kindly let lets like ll many maybe me might mine much must my "
    "myself named need needs never of off oh ok old older on one onto or our out please put quick quickly re "
    "really s shall should simply six so some somehow sort still sure t take takes taking than thanks that thats "
    "the their them then there these they thing things this those three to today too try trying two us using ve "
    "very via want wants was wasnt we were what whats when where which while who whom whose why will with wont "
    "would you your"
)
"""Words that tell nothing about what is wanted."""

ASKING = (
    "any anything are can check compare count did display do does explain find has have how is look list print read "
    "see show tell view was what whats when where which who whos whose why"
)
"""First words of requests that want to know, not to change."""

PHRASES = {
    r"how many": "count",
    r"make sure|ensure|make certain": "",
    r"where(?:s| is| are| does| do)|(?:on )?which (?:node|host)(?= (?:is|has|runs|does|do|are))": "location",
    r"every (?:\d+ )?(?=night|day|week|hour|minute|month|morning|evening|sunday|monday|friday|saturday)": "schedule ",
    r"(?:web|admin|management) ?(?:ui|gui|interface|page)|gui": "webgui",
    r"vmbr\d+": "bridge",
    r"(?:once|twice|(?:\d+|three|four) times) (?:a|per|an|every) (?:day|week|hour|month)": "schedule",
    r"(?:one|a single) (?:node|host)": "together",
    r"fill(?:s|ed|ing)? up|filled": "full",
    r"no longer|not any ?more|any ?more": "gone",
    r"(?:days?|weeks?|months?|hours?) ago|yesterdays?|last (?:night|week|month|monday|sunday)s?": "yesterday",
    r"over ?night": "night",
    r"what ?s up|whats wrong": "wrong",
    r"back(?:ed|ing|s)?[ -]?ups?": "backup",
    r"shut(?:s|ting)? (?:(?:it|them|everything|all) )?(?:down|off)": "shutdown",
    r"log(?:ged|ging|s)?[ -](?:in|on)(?:to)?": "login",
    r"sign(?:ed|s)? in": "login",
    r"(?:turn|switch|power)(?:ed|s|ing)? (?:it )?on(?! (?:that|the|my|this))": "switch enable",
    r"(?:turn|switch|power)(?:ed|s|ing)? (?:it )?(?:off|down)": "shutdown disable",
    r"(?:fire|start|boot)(?:d|ed|s|ing)? up": "start",
    r"(?:spin|stand|set)(?:s|ting|ning)? up": "create",
    r"bring(?:s|ing)? (?:it )?back|get (?:it )?back": "restore",
    r"(?:go|roll|set|step)(?:es|s|ed|ting|ing)? (?:it )?back": "rollback",
    r"g[eo]t(?:s|ting)? rid of|throw(?:s|ing)? (?:it )?(?:away|out)": "delete",
    r"get (?:it )?going|get (?:it )?(?:running|up)": "start",
    r"(?:clean|tid(?:y|ie))(?:s|ed|ing)? up|free(?:s|ing)? up": "cleanup",
    r"(?:empty|clear|drain)(?:s|ed|ing)?(?: out)?(?= (?:the )?(?:node|host|pve))": "evacuate",
    r"high(?:ly)?[ -]availab(?:le|ility)": "ha",
    r"cloud[ -]init": "cloudinit",
    r"hard (?:disk|drive)s?": "disk",
    r"network (?:card|adapter)s?": "nic",
    r"ip sets?": "ipset",
    r"ip address(?:es)?|ips": "ip",
    r"api keys?": "token",
    r"(?:allowed|able|permitted) to": "permission",
    r"free space|space (?:is )?left|disk space": "space",
    r"operating system": "os",
    r"file ?systems?": "filesystem",
    r"same (?:node|host|machine)s?": "together",
    r"(?:different|separate) (?:node|host|machine)s?": "apart",
    r"pve\d+|node\d+": "node",
    r"(?:not|stopped|wont|doesnt) (?:respond|answer|react)(?:ing)?|unresponsive": "hang",
    r"going on|happening": "happening",
    r"how long(?=.*\b(?:up|running|on)\b)": "uptime",
    r"(?:run(?:ning|s)?|ran) out of": "more",
    r"ran": "run",
    r"https?://\S+": "url",
    r"\d+(?:\.\d+){3}(?:/\d+)?": "address",
    r"\d+(?:[.,]\d+)? ?(?:[kmgt]i?b?|gigs?|gigabytes?|terabytes?)": "size",
    r"(?<![\w.])/[\w.-]+(?:/[\w.-]*)*": "path",
    r"[\w-]+\.(?:cfg|conf|config|env|ini|json|log|service|sh|toml|txt|xml|ya?ml)": "file",
}
"""Several words that mean one thing, as patterns."""

SAME = (
    "add attach plug hotplug hot",
    "address ip",
    "allow accept permit open",
    "another extra additional second more spare",
    "apart separate different spread split",
    "availability ha failover",
    "backup archive copies dump vzdump",
    "big bigger grow enlarge extend expand resize increase larger",
    "block deny drop reject close isolate forbid lock",
    "boot start power wake launch switch",
    "change edit modify adjust set tweak alter",
    "chart graph plot draw picture",
    "check verify confirm validate test audit inspect",
    "cleanup delete remove drop erase purge wipe destroy trash discard nuke scrap",
    "clone copy duplicate",
    "cluster datacenter",
    "command exec execute run script shell ssh",
    "config configuration settings options setup",
    "container ct lxc",
    "cpu core vcpu processor",
    "create make new build deploy provision add",
    "detach unplug disconnect eject",
    "disable deactivate off",
    "disk drive volume ssd hdd nvme",
    "download fetch grab pull",
    "enable activate on",
    "evacuate migrate move relocate transfer shift swap",
    "exists list show view display see which have",
    "fail failure error wrong broken broke break crash die dead complain problem trouble issue bad dying",
    "file path document",
    "finished done complete over ready yet",
    "firewall port traffic",
    "fit room capacity headroom space",
    "folder dir directory",
    "full space free used storage",
    "group team",
    "guest vm machine box server instance container ct",
    "hang frozen freeze stuck hung crash",
    "happening doing activity",
    "health healthy fine well alive working",
    "history past trend yesterday ago week month night last recent latest newest",
    "host node hypervisor pve proxmox",
    "image iso",
    "interface nic card network",
    "interrupt cancel abort stop kill terminate",
    "job task",
    "keep retention",
    "key ssh",
    "log journal syslog message",
    "login password passwd",
    "memory ram",
    "most top heaviest busiest largest eating hogging greedy",
    "name rename hostname",
    "network lan",
    "note comment description describe annotate",
    "offload overloaded balance",
    "os system distribution distro",
    "overview summary glance dashboard report status",
    "pause suspend hibernate freeze sleep",
    "permission right privilege role acl admin access may",
    "picture screen screenshot console display monitor",
    "protect safe keep mark",
    "reboot restart bounce cycle reset",
    "reduce less shrink smaller lower",
    "replica replication replicate sync mirror",
    "restore recover rescue undelete",
    "rollback revert undo restore",
    "schedule nightly daily weekly hourly regularly automatic every plan",
    "service daemon unit systemd nginx apache docker postgres mysql mariadb redis sshd samba",
    "shutdown stop halt poweroff",
    "size big large",
    "snapshot checkpoint",
    "ssl tls certificate cert https",
    "storage datastore nas share nvme ssd",
    "token secret credential",
    "update upgrade patch package apt",
    "uptime long since",
    "url link internet website online web",
    "usage load used busy utilisation utilization bandwidth traffic throughput",
    "user account person people guy colleague friend brother somebody someone login intern family wife",
    "vlan tag",
)
"""Words that may stand for each other: a hit by such a word counts less than one by the word itself."""

SAID = {
    "access_delete": "remove account revoke token user group role pool offboard somebody left no longer key",
    "access_list": "access accounts logins users groups roles realms tokens permissions members admins",
    "acl_set": (
        "intern colleague may restart start manage vms somebody see not change grant allow permission rights "
        "access role view look read-only admin share user vm pool storage revoke away"
    ),
    "api_call": "raw api endpoint POST DELETE request path anything else no other tool",
    "api_search": "raw api endpoint parameter documentation reference look up path",
    "backup_coverage": (
        "guest recent check verify not backed up unprotected missing without forgotten stale last data safe copies "
        "everything covered machines"
    ),
    "backup_create": "save copy pbs back up guest vm now before risky work make full",
    "backup_job_delete": "stop remove end nightly scheduled backup no longer",
    "backup_job_list": "backup schedules planned nightly weekly jobs set up",
    "backup_job_run": "start trigger nightly scheduled job hand now",
    "backup_job_set": (
        "run backups often schedule plan nightly daily weekly automatic regular night everything retention keep "
        "disable enable pause time change job"
    ),
    "backup_list": "count keep yesterday last backed up existing age size copies",
    "backup_prune": "backups cleanup space keep only last newest retention thin",
    "backup_restore": "vm bring back recover lost deleted broken guest disaster backup last week",
    "backup_show": "inside backup contents config hold time",
    "capacity_plan": (
        "cope losing node survive run more vms size hold enough room fit another new guest place which node has "
        "most free memory dies fails goes down everything rest spare headroom"
    ),
    "ceph_status": "ceph osd monitor placement rados healthy",
    "cloudinit_get": "cloud-init settings user ssh key ip dns waiting show",
    "cloudinit_set": "cloud image ssh key user password static ip dns gateway first boot userdata",
    "cluster_health": (
        "daily report slow problems wrong worry attention broken issues alerts anything bad check healthy diagnose "
        "trouble red failed warning fix look after"
    ),
    "cluster_status": "daily report overview summary quorum healthy up online offline everything lab homelab version",
    "container_create": "new lxc container ct make deploy spin up debian ubuntu alpine template",
    "disk_add": "another tb new second extra additional drive disk volume mount point more storage guest vm",
    "disk_change": (
        "disk keep swap nvme hdd migrate grow bigger resize extend enlarge root full space unplug detach attach "
        "unused move other faster storage ssd"
    ),
    "disk_destroy": "wipe erase delete disk drive good unused data gone",
    "firewall_delete": "remove drop away firewall rule alias ipset security group",
    "firewall_get": "show firewall rules ports open closed blocked reachable allowed log dropped packets",
    "firewall_object_set": "alias ip set addresses networks security group define reuse",
    "firewall_options_set": "switch firewall enable disable default policy drop incoming block everything",
    "firewall_rule_set": (
        "limit restrict reach webgui only open close port allow block deny accept drop isolate traffic incoming "
        "outgoing inbound internet lan ssh http tcp udp"
    ),
    "group_set": "create user group team members add",
    "guest_bulk": "everything several guest once mass shutdown stop start tag snapshot together lab",
    "guest_clone": "copy duplicate clone template new vm based test",
    "guest_configure": (
        "hot add hotplug double twice vm keeps running out of memory slow bigger size less ram gigs cpu cores vcpu "
        "bump rename name hostname autostart start automatically host boots order description notes tags "
        "protection change settings hardware reduce increase agent ballooning"
    ),
    "guest_delete": "wipe gone completely scrap delete remove destroy vm container guest decommission",
    "guest_dir_list": "files path folder directory ls inside guest",
    "guest_exec": (
        "df ls containers run execute command shell script ssh inside guest apt install upgrade security "
        "updates docker compose terminal top ping"
    ),
    "guest_file_read": (
        "look file compose yml read show open cat tail head contents config inside guest path etc conf log auth"
    ),
    "guest_file_write": (
        "script path replace line config nginx write edit change create drop place file inside guest etc conf save "
        "append hosts"
    ),
    "guest_get": (
        "location node vlan mac how long up details guest cores memory ip hardware config status alive agent running"
    ),
    "guest_info": (
        "linux windows how long up distro operating system installed kernel distribution version inside guest "
        "filesystem full users agent alive"
    ),
    "guest_job": "long running command guest background done yet finished output exit code started earlier",
    "guest_list": (
        "location machine ip count list everything node powered off vms containers running stopped guests find "
        "search tag pool name"
    ),
    "guest_migrate": (
        "offload overloaded balance move guest vm container over another other host live evacuate node maintenance"
    ),
    "guest_network": "ip interfaces mac inside guest routes dns network sees",
    "guest_path_stat": "big file size exists owner mode permissions modified inside guest path changed",
    "guest_power": (
        "start boot restart reboot shutdown suspend pause resume wake reset button vm container down bring up"
    ),
    "guest_screenshot": "screen picture console display monitor show say boot stuck see grub",
    "guest_service": (
        "postgres up alive server start service daemon running active failed enabled inside guest systemd unit "
        "status nginx docker"
    ),
    "guest_service_control": (
        "restart start stop enable disable reload service daemon web server inside guest systemd unit nginx docker"
    ),
    "guest_stop": "kill hard power off cut pull plug force stop frozen hung hangs crashed not shut down",
    "guest_template": "base image convert turn vm template golden",
    "guest_wait": "wait until guest booted is up ready reachable ssh agent alive answers port open",
    "ha_relocate": "move ha guest another node manager",
    "ha_remove": "guest no longer highly available remove rule",
    "ha_rule_set": (
        "end up keep guests apart separate different same node same host anti-affinity prefer pin rule failure not"
    ),
    "ha_set": (
        "enable guest under protect keep running survive node host fails dies crash goes down automatically "
        "restart elsewhere failover highly available"
    ),
    "ha_status": (
        "wrong error fenced guests protected under list high availability working manager crm lrm state failover"
    ),
    "image_download": "add link download fetch grab iso cloud image container template url internet latest",
    "image_upload": "upload iso local file image computer laptop",
    "inventory_export": "playbook host ansible inventory file export list guests addresses",
    "log_read": "syslog journal log messages dmesg events logged in changed happened audit kernel errors node cluster",
    "metrics_get": "graph chart history load cpu memory traffic over time busy last night week day month trend",
    "metrics_top": "guest uses most eating hogging cpu memory disk network busiest heaviest slow noisy",
    "network_apply": "apply activate pending waiting network changes make real reload",
    "network_list": "bridges vlans vmbr bonds networks interfaces node zones vnets subnets",
    "nic_remove": "delete remove network card interface guest",
    "nic_set": (
        "switch change network mac address guest vlan tag bridge vmbr network card connect vm container use "
        "another other second lan isolate rate limit"
    ),
    "node_get": "list everything node one node host details version proxmox kernel hardware cpu memory uptime",
    "node_inspect": (
        "nvme ssd updates available packages pending smart health drives disks dying failing wear zfs pools "
        "certificate expire services subscription repositories dns time pci gpu usb devices hardware node"
    ),
    "node_list": "nodes hosts busy online offline load most free memory overview",
    "node_network_change": "bridge vlan bond interface address node host create edit vmbr",
    "node_power": "reboot restart shutdown whole node host physical server maintenance hypervisor ups battery",
    "node_service_control": (
        "web interface proxmox hangs restart start stop service daemon node host pveproxy pvedaemon corosync ssh chrony"
    ),
    "node_updates_refresh": "apt update refresh package lists node check new",
    "permission_audit": "somebody user token allowed to may rights missing privilege denied refused cannot 403",
    "pool_set": "group machines pool guests resource create add members",
    "replication_delete": "stop end remove replication guest no more",
    "replication_list": "replication work fail last sync zfs errors state replicas",
    "replication_run": "sync replicate replica now trigger",
    "replication_set": "copy sync replicate disks guest other node minutes hours schedule zfs",
    "role_set": "define custom role privileges may only",
    "sdn_change": "vnet zone subnet vxlan evpn create software defined network isolated",
    "snapshot_create": "make snapshot before upgrade update save state go back",
    "snapshot_delete": "snapshots remove cleanup",
    "snapshot_list": "snapshots exist show",
    "snapshot_rollback": "go back revert undo before update upgrade broke earlier state restore snapshot",
    "snapshot_update": "rename describe note comment description snapshot",
    "storage_list": "big size large backup storage eats space free full almost used datastores nas share zfs nfs pbs",
    "task_get": "fail error log job task details result output migration backup complain",
    "task_list": "ran commands going on proxmox now jobs recent failed since yesterday backup night history",
    "task_stop": "cancel abort kill stuck hanging task job migration backup running",
    "task_wait": "finished done yet wait task clone progress far",
    "template_list": "container templates appliances lxc available download",
    "token_create": "api token key secret script monitoring automation rotate renew",
    "user_set": "new user account login person create add password email disable enable lock somebody",
    "vm_create": "new vm virtual machine make install set up windows linux iso",
    "volume_delete": (
        "backups guests gone exist delete remove iso image template file leftover orphaned unused disk cleanup space"
    ),
    "volume_list": (
        "where are isos eats full files images storage share contents orphaned leftover unused disks nobody uses"
    ),
    "volume_update": "protect mark backup deletion prune keep forever note comment unprotect nobody deletes",
}
"""By operation, what people say when they mean it, beyond its own name and summary."""
SAID |= HOMELAB_SAID
