# Who may call what on SPIRE's server API: SPIRE's own policy, narrowed for our programs.
#
# SPIRE's admin right is all or nothing. Here it is cut down by the caller's id: `data.banlieue.callers` (see
# spire-policy-data.json) names our programs, what each may do, and the cluster it may do it in; several clusters may
# share a trust domain. An admin who is not named there may read, and nothing else. What is done on the server's own
# socket stays SPIRE's default, for people who have a shell there, except that nobody mints SVIDs.
#
# Input: `caller` (SPIFFE id, empty on the local socket), `full_method`, `req` (the request, fields as in the protos;
# absent for streams). Entries leave false and empty fields out.
package spire

result = {
	"allow": allow,
	"allow_if_admin": allow_if_admin,
	"allow_if_local": allow_if_local,
	"allow_if_downstream": allow_if_downstream,
	"allow_if_agent": allow_if_agent,
}

default allow = false

default allow_if_admin = false

default allow_if_local = false

default allow_if_downstream = false

default allow_if_agent = false

### Everybody, agents, the local socket: SPIRE's defaults ###

any_methods = {
	"/spire.api.server.bundle.v1.Bundle/GetBundle",
	"/spire.api.server.agent.v1.Agent/AttestAgent",
}

agent_methods = {
	"/spire.api.server.svid.v1.SVID/BatchNewX509SVID",
	"/spire.api.server.bundle.v1.Bundle/GetFederatedBundle",
	"/spire.api.server.entry.v1.Entry/GetAuthorizedEntries",
	"/spire.api.server.entry.v1.Entry/SyncAuthorizedEntries",
	"/spire.api.server.agent.v1.Agent/RenewAgent",
	"/spire.api.server.agent.v1.Agent/PostStatus",
}

# Whole services that the local socket may use.
local_services = {
	"spire.api.server.entry.v1.Entry",
	"spire.api.server.agent.v1.Agent",
	"spire.api.server.bundle.v1.Bundle",
	"spire.api.server.debug.v1.Debug",
	"spire.api.server.logger.v1.Logger",
	"spire.api.server.trustdomain.v1.TrustDomain",
	"spire.api.server.localauthority.v1.LocalAuthority",
	"grpc.health.v1.Health",
}

not_local = {
	"/spire.api.server.bundle.v1.Bundle/PublishJWTAuthority",
	"/spire.api.server.entry.v1.Entry/GetAuthorizedEntries",
	"/spire.api.server.entry.v1.Entry/SyncAuthorizedEntries",
	"/spire.api.server.agent.v1.Agent/RenewAgent",
	"/spire.api.server.agent.v1.Agent/PostStatus",
}

allow if input.full_method in any_methods

allow_if_agent if input.full_method in agent_methods

# SPIRE does not check the audience of a JWT-SVID, so a member's workload could ask for any.
allow_if_agent if {
	input.full_method == "/spire.api.server.svid.v1.SVID/NewJWTSVID"
	not regex.match(`^spiffe://[^/]+/spire/agent/banlieue_vtpm/`, input.caller)
}

allow_if_local if {
	service := split(input.full_method, "/")[1]
	service in local_services
	not input.full_method in not_local
}

### Admins, by id ###

reading = {
	"/spire.api.server.entry.v1.Entry/CountEntries",
	"/spire.api.server.entry.v1.Entry/ListEntries",
	"/spire.api.server.entry.v1.Entry/GetEntry",
	"/spire.api.server.agent.v1.Agent/CountAgents",
	"/spire.api.server.agent.v1.Agent/ListAgents",
	"/spire.api.server.agent.v1.Agent/GetAgent",
}

allow_if_admin if input.full_method in reading

allow_if_admin if {
	input.full_method == "/spire.api.server.entry.v1.Entry/BatchCreateEntry"
	some caller in callers
	count(input.req.entries) > 0
	every entry in input.req.entries {
		may_create(caller, entry)
	}
}

allow_if_admin if {
	input.full_method == "/spire.api.server.entry.v1.Entry/BatchDeleteEntry"
	some caller in callers
	count(input.req.ids) > 0
	every id in input.req.ids {
		may_delete(caller, id)
	}
}

allow_if_admin if {
	input.full_method in {
		"/spire.api.server.agent.v1.Agent/BanAgent",
		"/spire.api.server.agent.v1.Agent/DeleteAgent",
	}
	some caller in callers
	caller.role == "attestor"
	startswith(input.req.id.path, agents_of(caller))
}

callers contains caller if {
	some caller in data.banlieue.callers
	caller.id == input.caller
}

agents_of(caller) = sprintf("/spire/agent/banlieue_vtpm/%s/", [caller.cluster])

# Paths that each writer may grant.
granted = {
	"attestor": `^/banlieue/(node|egress)/[0-9a-f-]{36}$`,
	"mediatore": `^/banlieue/claim/[0-9a-f-]{36}$`,
}

may_create(caller, entry) if {
	startswith(entry.id, sprintf("%s.%s.", [caller.cluster, caller.role]))
	regex.match(granted[caller.role], entry.spiffe_id.path)
	startswith(entry.parent_id.path, agents_of(caller))
	count(object.get(entry, "selectors", [])) > 0
	not entry.admin
	not entry.downstream
	not entry.store_svid
	count(object.get(entry, "dns_names", [])) == 0
	count(object.get(entry, "federates_with", [])) == 0
	object.get(entry, "hint", "") == ""
}

may_delete(caller, id) if startswith(id, sprintf("%s.%s.", [caller.cluster, caller.role]))

# Entries of claims that are over, when mediatore is down. A request carries ids only, so which claims are over is
# checked by the attestor controller's own code.
may_delete(caller, id) if {
	caller.role == "attestor"
	startswith(id, sprintf("%s.mediatore.", [caller.cluster]))
}
