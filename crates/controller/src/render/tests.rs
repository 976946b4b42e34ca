use super::*;

fn manifest_of(name: &str, role: &str, path: &str, content: &str) -> (String, String) {
    let manifest = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {label::CONFIG_ROLE: role}},
        "spec": {"config": {
            "ignition": {"version": "3.2.0"},
            "storage": {"files": [
                {"path": path, "mode": 420, "overwrite": true, "contents": {"source": content}},
            ]},
        }},
    });
    (name.to_owned(), manifest.to_string())
}

fn config(name: &str, labels: &[(&str, &str)]) -> ConfigObject {
    let labels = labels.iter();
    ConfigObject {
        name: name.to_owned(),
        uid: String::new(),
        resource_version: "1".to_owned(),
        labels: labels
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        created: None,
        text: String::new(),
    }
}

fn rendered(texts: &[(String, String)]) -> Result<RenderedPoolConfig, RenderError> {
    render("infra", texts, &ConfigRules::default())
}

#[test]
fn a_custom_pool_overrides_the_workers_whatever_the_names_are() {
    let texts = [
        manifest_of("10-infra", "infra", "/etc/a", "data:,infra"),
        manifest_of("99-worker", "worker", "/etc/a", "data:,worker"),
    ];
    let found = rendered(&texts).unwrap();
    assert_eq!(found.sources, ["99-worker", "10-infra"]);
    assert!(found.name.starts_with("rendered-infra-"), "{}", found.name);
    assert_eq!(found.manifest["metadata"]["name"], found.name);
    let labels = &found.manifest["metadata"]["labels"];
    assert_eq!(labels, &json!({"machinist.dev/rendered-for": "infra"}));
    let text = found.manifest.to_string();
    assert!(
        text.contains("infra") && !text.contains("data:,worker"),
        "{text}"
    );
    let metadata = found.manifest["metadata"].as_object().unwrap();
    assert!(!metadata.contains_key("ownerReferences") && !metadata.contains_key("finalizers"));
    let other = [texts[1].clone(), texts[0].clone()];
    assert_eq!(rendered(&other).unwrap().name, found.name);
}

#[test]
fn an_os_image_of_a_user_wins_and_is_marked() {
    let digest = |digit: &str| format!("quay.io/os@sha256:{}", digit.repeat(64));
    let image = |name: &str, image: String, annotations: Value| {
        let manifest = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1",
            "kind": "MachineConfig",
            "metadata": {
                "name": name,
                "labels": {label::CONFIG_ROLE: "infra"},
                "annotations": annotations,
            },
            "spec": {"osImageURL": image},
        });
        (name.to_owned(), manifest.to_string())
    };
    let generated =
        json!({"machineconfiguration.openshift.io/generated-by-controller-version": "v4"});
    let marked = |texts: &[(String, String)]| {
        let manifest = rendered(texts).unwrap().manifest;
        let mark = &manifest["metadata"]["annotations"][protocol::OS_IMAGE_URL_OVERRIDDEN];
        (manifest["spec"]["osImageURL"].clone(), mark.clone())
    };
    let of_controller = image("99-generated", digest("1"), generated);
    let of_user = image("50-user", digest("2"), json!({}));
    let later = image("60-user", digest("3"), json!({}));
    let all = [of_controller.clone(), of_user, later];
    assert_eq!(marked(&all), (json!(digest("3")), json!("true")));
    assert_eq!(marked(&all[..2]), (json!(digest("2")), json!("true")));
    let file = manifest_of("10-file", "infra", "/etc/a", "data:,x");
    assert_eq!(marked(&[of_controller, file]), (Value::Null, Value::Null));
}

#[test]
fn unknown_fields_and_replaced_files_are_warned_of() {
    let first = manifest_of("10-first", "infra", "/etc/a", "data:,first");
    let second = manifest_of("20-second", "infra", "/etc/a", "data:,second");
    let slip = first.1.replace("\"mode\"", "\"mod\"");
    let found = rendered(&[(first.0, slip), second]).unwrap();
    let warnings: Vec<&String> = found.all_warnings().collect();
    for text in ["did you mean mode?", "different content"] {
        assert!(warnings.iter().any(|it| it.contains(text)), "{warnings:#?}");
    }
}

#[test]
fn a_refusal_names_the_object_and_the_field() {
    let texts = [
        manifest_of("10-good", "infra", "/etc/a", "data:,x"),
        manifest_of("20-bad", "infra", "etc/b", "data:,x"),
    ];
    let error = rendered(&texts).unwrap_err();
    let text = error.to_string();
    let place = "MachineConfig 20-bad: spec.config.storage.files[0].path: ";
    assert!(text.starts_with(place), "{text}");
    assert!(!text.contains("10-good"), "{text}");
    assert_eq!(error.code(), "PathInvalid");
}

#[test]
fn a_config_that_the_api_server_cannot_store_is_refused() {
    let content = format!("data:,{}", "x".repeat(MAX_CONFIG_BYTES));
    let texts = [manifest_of("10-large", "infra", "/etc/a", &content)];
    assert_eq!(rendered(&texts).unwrap_err().code(), "ConfigTooLarge");
    assert_eq!(rendered(&[]).unwrap_err().code(), "NoMachineConfigs");
}

#[test]
fn rendered_configs_are_never_selected_nor_is_anything_by_an_empty_selector() {
    let role = (label::CONFIG_ROLE, "infra");
    let configs: BTreeMap<_, _> = [
        config("10-a", &[role]),
        config("10-b", &[(label::CONFIG_ROLE, "worker")]),
        config("rendered-infra-0", &[role]),
        config("own", &[role, (label::RENDERED_FOR, "infra")]),
    ]
    .into_iter()
    .map(|it| (it.name.clone(), it))
    .collect();
    let mut pool = PoolView::default();
    assert!(selected(&pool, &configs).is_empty());
    let labels = &mut pool.spec.machine_config_selector.match_labels;
    labels.insert(role.0.to_owned(), role.1.to_owned());
    let names: Vec<_> = selected(&pool, &configs)
        .iter()
        .map(|it| it.name.clone())
        .collect();
    assert_eq!(names, ["10-a"]);
}
