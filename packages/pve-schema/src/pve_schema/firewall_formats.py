"""The formats of what firewall rules match: addresses, ports, protocols and ICMP types, with PVE's messages."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

ALIAS: Final = re.compile(r"(?:(?:dc|guest)/)?[A-Za-z][A-Za-z0-9\-_]+")
_LONGEST_IPSET: Final = 64
_LONGEST_ALIAS: Final = 64
_MOST_PORTS: Final = 15

MACRO_SETTINGS: Final[dict[str, list[dict[str, str]]]] = {
    name: [dict(zip(("proto", "dport"), rule.split("/"), strict=False)) for rule in rules.split("+")]
    for name, rules in re.findall(r"(\S+)=(\S+)", (
        "Amanda=udp/10080+tcp/10080 Auth=tcp/113 BGP=tcp/179 Ceph=tcp/6789+tcp/3300+tcp/6800:7300"
        " Citrix=tcp/1494+udp/1604+tcp/2598 CVS=tcp/2401"
        " DAAP=tcp/3689+udp/3689 DNS=udp/53+tcp/53 FTP=tcp/21 Finger=tcp/79 GRE=47 Git=tcp/9418 HKP=tcp/11371"
        " HTTP=tcp/80 HTTPS=tcp/443 IMAP=tcp/143 IMAPS=tcp/993 IRC=tcp/6667 L2TP=udp/1701 LDAP=tcp/389 LDAPS=tcp/636"
        " MDNS=udp/5353 MSSQL=tcp/1433 Mail=tcp/25+tcp/465+tcp/587 Munin=tcp/4949 MySQL=tcp/3306 NNTP=tcp/119"
        " NNTPS=tcp/563 NTP=udp/123 OSPF=89 OpenVPN=udp/1194 PMG=tcp/8006 POP3=tcp/110 POP3S=tcp/995"
        " PPtP=47+tcp/1723 PostgreSQL=tcp/5432 RDP=tcp/3389 Rsync=tcp/873 SMB=udp/135,445+udp/137:139+tcp/135,139,445"
        " SMTP=tcp/25 SMTPS=tcp/465"
        " SNMP=udp/161:162+tcp/161 SPICEproxy=tcp/3128 SSH=tcp/22 SVN=tcp/3690 Squid=tcp/3128 Submission=tcp/587"
        " Syslog=udp/514+tcp/514 TFTP=udp/69 Telnet=tcp/23 VNC=tcp/5900:5999 Web=tcp/80+tcp/443 Webcache=tcp/8080"
        " Webmin=tcp/10000 Whois=tcp/43"
    ))
}  # fmt: skip
"""Protocol and ports that a macro sets. Those of the other macros depend on the address family."""

_PROTOCOL_NAMES: Final = (
    "ip icmp igmp ggp ipencap st tcp egp igp pup udp hmp xns-idp rdp iso-tp4 dccp xtp ddp idpr-cmtp ipv6"
    " ipv6-route ipv6-frag idrp rsvp gre esp ah skip ipv6-icmp icmpv6 ipv6-nonxt ipv6-opts vmtp eigrp ospf ax.25"
    " ipip etherip encap pim ipcomp vrrp l2tp isis sctp fc mobility-header udplite mpls-in-ip hip shim6 wesp rohc"
)
_PROTOCOLS: Final = frozenset(_PROTOCOL_NAMES.split())
_ICMP_TYPE_NAMES: Final = (
    "any echo-reply destination-unreachable network-unreachable host-unreachable protocol-unreachable port-unreachable"
    " fragmentation-needed source-route-failed network-unknown host-unknown network-prohibited host-prohibited"
    " TOS-network-unreachable TOS-host-unreachable communication-prohibited host-precedence-violation"
    " precedence-cutoff source-quench redirect network-redirect host-redirect TOS-network-redirect TOS-host-redirect"
    " echo-request router-advertisement router-solicitation time-exceeded ttl-zero-during-transit"
    " ttl-zero-during-reassembly parameter-problem ip-header-bad required-option-missing timestamp-request"
    " timestamp-reply address-mask-request address-mask-reply no-route beyond-scope address-unreachable failed-policy"
    " reject-route packet-too-big bad-header unknown-header-type unknown-option neighbor-solicitation"
    " neighbour-solicitation neighbor-advertisement neighbour-advertisement"
)
_ICMP_TYPES: Final = frozenset(_ICMP_TYPE_NAMES.split())

# The names in Debian's /etc/services, where PVE looks up ports.
_SERVICE_NAMES: Final = (
    "Clearcase acr-nema afpovertcp afs3-bos afs3-callback afs3-fileserver afs3-kaserver afs3-prserver afs3-rmtsys "
    "afs3-update afs3-vlserver afs3-volser amanda amandaidx amidxtape amqp amqps asf-rmcp asp auth authentication "
    "babel bacula-dir bacula-fd bacula-sd bbs bgp bgpd biff binkp bootpc bootps canna cfengine chargen cisco-sccp "
    "clc-build-daemon clearcase cmd cmip-agent cmip-man codaauth2 codasrv codasrv-se comsat csync2 cvspserver "
    "daap datametrics daytime db-lsp dcap dhcpv6-client dhcpv6-server dicom dict dircproxy discard distcc domain "
    "domain-s echo epmap epmd exec f5-globalsite f5-iquery fax fido finger font-service freeciv fsp fspd ftp "
    "ftp-data ftps ftps-data gdomap gds-db gds_db git gnunet gnutella-rtr gnutella-svc gopher gpsd gris groupwise "
    "gsidcap gsiftp gsigatekeeper hkp hprop http http-alt https hylafax iax icp icpv2 ident imap imap2 imaps "
    "ingreslock ipp iprop ipsec-nat-t ipx ircd ircs-u isakmp iscsi-target isisd isns iso-tsap jabber-client "
    "jabber-server kamanda kdc kerberos kerberos-adm kerberos-iv kerberos-master kerberos-sec kerberos4 kerberos5 "
    "kerberos_master kermit klogin kpasswd krb-prop krb5 krb5_prop krb_prop krcmd kshell l2f l2tp ldap ldaps ldp "
    "loc-srv login lotusnote lotusnotes lrrd mail mailq mdns microsoft-ds moira-db moira-update moira-ureg "
    "moira_db moira_update moira_ureg mon ms-sql-m ms-sql-s ms-wbt-server mtn munin mysql mysql-proxy nbd nbp "
    "netbios-dgm netbios-ns netbios-ssn netstat nfs nicname nntp nntps nqs nrpe nsca ntalk ntp ntske null nut "
    "old-radacct old-radius omniorb openvpn ospf6d ospfapi ospfd passwd-server passwd_server pawserv pop-3 pop3 "
    "pop3s poppassd portmapper postgres postgresql predict printer proofd ptp-event ptp-general puppet qmqp qmtp "
    "qotd quote radacct radius radius-acct radmin-port readnews redis remctl ripd ripngd rmiregistry rmtcfg rootd "
    "route routed router rpc2portmap rplay rptp rsync rtcm-sc104 rtmp rtsp sa-msg-port saft sane sane-port saned "
    "sge-execd sge-qmaster sge_execd sge_qmaster sgi-cad sgi-cmsd sgi-crsd sgi-gcd shell sieve silc sink sip "
    "sip-tls skkserv smtp smtps smux snmp snmp-trap snmptrap snntp snpp socks source spamd spooler ssh ssmtp "
    "submission submissions subversion sunrpc supfiledbg supfilesrv suucp svn svrloc syslog syslog-tls sysrqd "
    "systat tacacs talk tap tcpmux telnet telnets tfido tftp time timserver tinc tproxy tsap ttytst untp urd "
    "users uucp uucpd venus venus-se wais webcache webmin who whod whois wnn6 www x11 x11-0 x11-1 x11-2 x11-3 "
    "x11-4 x11-5 x11-6 x11-7 xdmcp xfs xinetd xmms2 xmpp-client xmpp-server xtel xtelw z3950 zabbix-agent "
    "zabbix-trapper zebra zebrasrv zephyr-clt zephyr-hm zephyr-srv zip zope zope-ftp zserv "
)
_SERVICES: Final = frozenset(_SERVICE_NAMES.split())


def port_problem(text: str, *, icmp_too: bool) -> str | None:
    """What is wrong with ports of a rule; a destination port may be an ICMP type as well."""
    numbers, icmp = 0, False
    if text.endswith(",") or text.startswith(",") or ",," in text:
        return "extraneous commas in list\n"
    for item in text.split(",") if text else ():
        first, colon, last = item.partition(":")
        if colon and first.isdecimal() and last.isdecimal():
            numbers += 2
            for port in (first, last):
                if int(port) > 65535:
                    return f"invalid port '{port}'\n"
            if int(first) > int(last):
                return f"backwards range '{item}' not allowed, did you mean '{last}:{first}'?\n"
        elif item.isdecimal():
            numbers += 1
            if int(item) > 65535:
                return f"invalid port '{item}'\n"
        elif icmp_too and item in _ICMP_TYPES:
            icmp = True
        elif item not in _SERVICES:
            return f"invalid port '{item}'\n"
    if icmp and numbers:
        return "ICMP ports not allowed in port range\n"
    return f"too many entries in port list (> {_MOST_PORTS} numbers)\n" if numbers > _MOST_PORTS else None


def address_problem(text: str) -> str | None:
    """What is wrong with the source or destination of a rule."""
    if re.fullmatch(r"\+\S+", text):
        return "ipset name too long\n" if len(text) > _LONGEST_IPSET + 1 else None
    if ALIAS.fullmatch(text):
        return "alias name too long\n" if len(text) > _LONGEST_ALIAS else None
    if text.endswith(",") or text.startswith(",") or ",," in text:
        return "extraneous commas in list\n"
    families, parts = set(), text.split(",") if text else []
    for part in parts:
        family = family_of(part)
        if family is None:
            return f"invalid IP address: {_complaint(part)}\n"
        families.add(family)
        if len(families) > 1:
            return f"detected mixed ipv4/ipv6 addresses in address list '{text}'\n"
    return "you can't use a range in a list\n" if "-" in text and len(parts) > 1 else None


def family_of(address: str) -> int | None:
    """4 or 6; None for anything but an address, network or range."""
    first, dash, last = address.partition("-")
    try:
        if not dash:
            return ipaddress.ip_network(address, strict=False).version
        begin, end = ipaddress.ip_address(first), ipaddress.ip_address(last)
        return begin.version if begin.version == end.version and int(begin) <= int(end) else None
    except ValueError:
        return None


def _complaint(address: str) -> str:
    """What Perl's address library says about an address that it cannot parse."""
    first, dash, last = address.partition("-")
    if dash and family_of(first) and family_of(last):
        return f"begin address is greater than end address {first} - {last}"
    host, slash, prefix = first.partition("/")
    if slash and family_of(host):
        return f"Invalid prefix length /{prefix}"
    if not re.fullmatch(r"[\d.]+", host):
        return f"Invalid chars in IP {host}"
    if host.startswith(".") or host.endswith("."):
        return f"Invalid IP {host} - {'starts' if host.startswith('.') else 'ends'} with a dot"
    quads = host.split(".")
    if len(quads) > 4:
        return f"Invalid IP address {host}"
    if "" in quads:
        return f"Empty quad in IP address {host}"
    wrong = next((quad for quad in quads if int(quad) > 255), host)
    return f"Invalid quad in IP address {host} - {wrong}"


def protocol_problem(text: str) -> str | None:
    if not text or text in _PROTOCOLS or (text.isdecimal() and int(text) < 256):
        return None
    return f"unknown protocol '{text}'\n"


def icmp_type_problem(text: str) -> str | None:
    return None if not text or text in _ICMP_TYPES else f"invalid icmp-type value '{text}'\n"
