//! Butane's local files: which are read, and which are refused.

use std::fs;

use machinist_agent::config_dir::LocalFiles;
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{
    ConfigDocument, ConfigRules, Content, LocalEntry, LocalError, LocalFileSource, MergeOrder,
    NoLocalFiles, Refusal, documents_from_files, merge,
};
use machinist_rootfs::Root;
use machinist_testkit::finish_in_time;

fn butane(locals: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut text = "variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n".to_owned();
    for (number, local) in locals.iter().enumerate() {
        text.push_str(&format!(
            "  - {{path: /etc/{number}, contents: {{local: {local}}}}}\n"
        ));
    }
    vec![("a.bu".to_owned(), text.into_bytes())]
}

fn read(locals: &[&str], local: &dyn LocalFileSource) -> Result<Vec<ConfigDocument>, Vec<Refusal>> {
    documents_from_files(butane(locals), &ConfigRules::default(), local)
        .map(|(documents, _)| documents)
}

/// Any file, with this many bytes.
#[derive(Debug)]
struct Zeros(usize);

impl LocalFileSource for Zeros {
    fn read(&self, text: &str, _: &AbsPath) -> Result<Vec<u8>, LocalError> {
        assert_eq!(text, "a.bu");
        Ok(vec![0; self.0])
    }

    fn tree(&self, _: &str, _: &AbsPath) -> Result<Vec<LocalEntry>, LocalError> {
        Err(LocalError::new(Reason::SourceUnreadable, "no trees here"))
    }
}

#[test]
fn butane_local_files_count_towards_the_config_size_limit() {
    let five = Zeros(5 << 20);
    assert!(read(&["a"; 12], &five).is_ok());
    let refusals = read(&["a"; 13], &five).unwrap_err();
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].message.contains("67108864"), "{}", refusals[0]);
}

#[test]
fn butane_local_files_must_be_small_regular_files_and_never_block() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("large"), vec![0; (8 << 20) + 1]).unwrap();
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut local = LocalFiles::new(Root::open(dir.path()).unwrap());
    local.text("a.bu", AbsPath::root());
    let refusals = finish_in_time(move || read(&["large", "pipe"], &local)).unwrap_err();
    let messages: Vec<_> = refusals.iter().map(|r| &*r.message).collect();
    assert_eq!(
        messages,
        [
            "large has more than 8388608 bytes",
            "pipe is a named pipe, not a regular file"
        ]
    );
}

#[test]
fn each_butane_config_resolves_local_files_in_its_own_directory() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("file"), name).unwrap();
    }
    let mut local = LocalFiles::new(Root::open(dir.path()).unwrap());
    local.text("one/a.bu", "/one".parse().unwrap());
    local.text("two/a.bu", "/two".parse().unwrap());
    let path = "/file".parse().unwrap();
    assert_eq!(local.read("one/a.bu", &path).unwrap(), b"one");
    assert_eq!(local.read("two/a.bu", &path).unwrap(), b"two");
    assert!(local.read("three/a.bu", &path).is_err());
}

#[test]
fn paths_mean_what_butane_reads() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("files")).unwrap();
    fs::write(dir.path().join("files/a.txt"), "text").unwrap();
    let mut local = LocalFiles::new(Root::open(dir.path()).unwrap());
    local.text("a.bu", AbsPath::root());
    let good = ["./files/../files/a.txt", "files//a.txt", "files/a.txt/"];
    assert!(read(&good, &local).is_ok());
    for outside in ["../a", "files/../../a"] {
        let refusals = read(&[outside], &local).unwrap_err();
        assert!(refusals[0].message.contains("points outside"), "{outside}");
    }
    for (tree, path) in [
        ("{local: files, path: /etc/}", "/etc/a.txt"),
        ("{local: ./files/, path: /etc//x/../y}", "/etc/y/a.txt"),
        ("{local: .}", "/files/a.txt"),
    ] {
        let text = format!("variant: fcos\nversion: 1.6.0\nstorage:\n  trees: [{tree}]\n");
        let files = vec![("a.bu".to_owned(), text.into_bytes())];
        let documents = documents_from_files(files, &ConfigRules::default(), &local);
        let (config, _) = merge(documents.unwrap().0, "worker", MergeOrder::AsGiven).unwrap();
        let paths: Vec<_> = config.files.keys().map(AbsPath::as_str).collect();
        assert_eq!(paths, [path], "{tree}");
    }
}

/// Butane decodes a plain scalar into a text field as its text.
#[test]
fn a_plain_scalar_is_a_text_in_butane() {
    for scalar in ["12345", "1.50", "true", "y", "0644", "~x"] {
        let text = format!(
            "variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n  - {{path: /etc/a, overwrite: true, \
             contents: {{inline: {scalar}}}}}\n"
        );
        let files = vec![("a.bu".to_owned(), text.into_bytes())];
        let documents = documents_from_files(files, &ConfigRules::default(), &NoLocalFiles);
        let (config, _) = merge(documents.unwrap().0, "worker", MergeOrder::AsGiven).unwrap();
        let file = config.files.values().next().unwrap();
        let bytes = file.content.as_ref().and_then(Content::bytes);
        assert_eq!(bytes.unwrap(), scalar.as_bytes());
    }
    let text = "variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n  - {path: /etc/a, overwrite: true, \
         contents: {inline: [1]}}\n";
    let files = vec![("a.bu".to_owned(), text.as_bytes().to_vec())];
    let refusals = documents_from_files(files, &ConfigRules::default(), &NoLocalFiles).unwrap_err();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
}
