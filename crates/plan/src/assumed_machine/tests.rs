use super::without_machine;
use crate::{ChangeKind, Cost, Plan, Policies};
use machinist_base::reason::Reason;
use machinist_ignition::{
    ConfigRules, EntryKind, MachineConfig, MergeOrder, Refusal, merge, parse,
};

fn config(spec: &str) -> MachineConfig {
    let text = format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {{name: a}}\nspec: {spec}\n"
    );
    let mut rules = ConfigRules::default();
    rules.users.insert("ann".to_owned());
    rules.groups.insert("devs".to_owned());
    let documents = parse(&text, "a.yaml", &rules).unwrap();
    merge(documents, "worker", MergeOrder::WorkerFirst)
        .unwrap()
        .0
}

fn ignition(entries: &str) -> MachineConfig {
    config(&format!(
        "{{config: {{ignition: {{version: 3.4.0}}, {entries}}}}}"
    ))
}

fn plan(from: &MachineConfig, to: &MachineConfig) -> Result<Plan, Vec<Refusal>> {
    without_machine(from, to, &Policies::default())
}

/// The changes as `Create /etc/x`, the actions, and the cost.
fn shown(from: &MachineConfig, to: &MachineConfig) -> (Vec<String>, Vec<String>, Cost) {
    let plan = plan(from, to).unwrap();
    let changes = plan.changes.iter();
    let changes = changes.map(|it| format!("{:?} {:?} {}", it.change, it.kind, it.name));
    let actions = plan.actions.iter();
    let actions = actions.map(|it| format!("{:?} {}", it.kind, it.unit.as_deref().unwrap_or("-")));
    (changes.collect(), actions.collect(), plan.cost)
}

fn file(path: &str, text: &str) -> String {
    format!("{{path: {path}, mode: 420, contents: {{source: 'data:,{text}'}}}}")
}

fn files(all: &[String]) -> MachineConfig {
    ignition(&format!("storage: {{files: [{}]}}", all.join(", ")))
}

#[test]
fn a_config_with_every_kind_of_entry_needs_nothing_to_remain() {
    let whole = config(
        "{kernelArguments: [nosmt], config: {ignition: {version: 3.4.0}, \
         passwd: {users: [{name: ann, uid: 1500, sshAuthorizedKeys: ['ssh-ed25519 AAAA ann']}], groups: [{name: devs}]}, \
         storage: {files: [{path: /etc/a, mode: 420, contents: {source: 'data:,a'}}, \
           {path: /opt/b, mode: 384, user: {name: ann}, group: {name: devs}, contents: {source: 'data:,b'}}, \
           {path: /etc/c, mode: 420}], \
           directories: [{path: /var/lib/d, mode: 448}], \
           links: [{path: /etc/l, target: a}, {path: /etc/h, target: /etc/a, hard: true}]}, \
         systemd: {units: [{name: own.service, enabled: true, \
           contents: \"[Service]\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n\"}, \
           {name: crio.service, dropins: [{name: 10-a.conf, contents: \"[Service]\\nNice=1\\n\"}]}, \
           {name: sshd.service, enabled: true}, {name: off.service, enabled: false}, {name: no.service, mask: true}]}}}",
    );
    let found = plan(&whole, &whole).unwrap();
    assert!(found.changes.is_empty(), "{:?}", found.changes);
    assert!(found.is_empty(), "{:?}", found.operations);
    assert_eq!(found.from, found.to);
}

#[test]
fn the_cost_of_a_file_is_that_of_its_policy() {
    let nothing = files(&[]);
    let any = files(&[file("/etc/any", "1")]);
    let expected = vec!["Create File /etc/any".to_owned()];
    let reboot = vec!["Reboot -".to_owned()];
    assert_eq!(
        shown(&nothing, &any),
        (expected, reboot.clone(), Cost::Reboot)
    );
    assert!(plan(&nothing, &any).unwrap().drain);
    let expected = vec!["Remove File /etc/any".to_owned()];
    assert_eq!(shown(&any, &nothing), (expected, reboot, Cost::Reboot));
    let chrony = |text| files(&[file("/etc/chrony.conf", text)]);
    let (changes, actions, cost) = shown(&chrony("a%0A"), &chrony("b%0A"));
    assert_eq!(changes, ["Modify File /etc/chrony.conf"]);
    assert_eq!(actions, ["Restart chronyd.service"]);
    assert_eq!(cost, Cost::Restart);
    let diff = plan(&chrony("a%0A"), &chrony("b%0A")).unwrap().changes[0]
        .diff
        .clone();
    assert!(diff.unwrap().contains("-a\n+b\n"));
}

#[test]
fn a_unit_that_no_config_contains_is_assumed_to_run() {
    let drop_in = |text: &str| {
        ignition(&format!(
            "systemd: {{units: [{{name: crio.service, dropins: [{{name: 10-a.conf, contents: \"[Service]\\n{text}\\n\"}}]}}]}}"
        ))
    };
    let (changes, actions, cost) = shown(&files(&[]), &drop_in("Nice=1"));
    assert_eq!(changes, ["Create DropIn crio.service/10-a.conf"]);
    assert!(
        actions.contains(&"Restart crio.service".to_owned()),
        "{actions:?}"
    );
    assert_eq!(cost, Cost::Restart);
    let (changes, ..) = shown(&drop_in("Nice=1"), &drop_in("Nice=2"));
    assert_eq!(changes, ["Modify DropIn crio.service/10-a.conf"]);
}

#[test]
fn users_and_keys_are_compared_as_entries_and_need_no_action() {
    let keys = |keys: &str| {
        ignition(&format!(
            "passwd: {{users: [{{name: core, sshAuthorizedKeys: [{keys}]}}]}}"
        ))
    };
    let (old, new) = (keys("'ssh-ed25519 AAAA a'"), keys("'ssh-ed25519 BBBB b'"));
    let found = plan(&old, &new).unwrap();
    assert_eq!(found.changes.len(), 1);
    let change = &found.changes[0];
    assert_eq!(
        (change.kind, change.change),
        (EntryKind::SSHKey, ChangeKind::Modify)
    );
    assert_eq!((found.cost, found.drain), (Cost::None, false));
    assert_ne!(found.from.digest, found.to.digest);
}

#[test]
fn what_every_agent_refuses_is_refused() {
    let refusals = plan(&files(&[]), &config("{kernelArguments: [nosmt]}")).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::NoProviderForKernelArguments]);
}
