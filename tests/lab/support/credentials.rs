//! Credentials for the API server: a CA of the cluster's own and certificates from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The API server's address on the bridge; pods and nodes reach it without a proxy.
const API: &str = "https://10.99.0.1:443";

/// Creates the CA, and the key that signs the tokens of service accounts.
pub fn authority(dir: &Path) {
    openssl(dir, &["genrsa", "-out", "accounts.key", "2048"]);
    let request = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let rest = ["-days", "2", "-subj", "/CN=lab", "-keyout", "authority.key"];
    openssl(
        dir,
        &[&request[..], &rest, &["-out", "authority.crt"]].concat(),
    );
}

/// A kubeconfig with a fresh certificate for `user` in `group`, at `USER.kubeconfig`.
pub fn kubeconfig(dir: &Path, user: &str, group: &str) -> PathBuf {
    let file = |end: &str| format!("{}.{end}", user.replace(':', "-"));
    let (key, request, certificate) = (file("key"), file("csr"), file("crt"));
    let subject = format!("/O={group}/CN={user}");
    let ask = [
        "req",
        "-new",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let rest = ["-subj", &subject, "-keyout", &key, "-out", &request];
    openssl(dir, &[&ask[..], &rest].concat());
    let sign = [
        "x509",
        "-req",
        "-in",
        &request,
        "-CA",
        "authority.crt",
        "-CAkey",
        "authority.key",
    ];
    // Extensions make it version 3, the only version that all TLS libraries accept.
    fs::write(dir.join("client.ext"), "extendedKeyUsage=clientAuth\n").unwrap();
    let rest = [
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "client.ext",
        "-out",
        &certificate,
    ];
    openssl(dir, &[&sign[..], &rest].concat());

    let data = |name: &str| openssl(dir, &["base64", "-A", "-in", name]);
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
         clusters: [{{name: lab, cluster: {{server: '{API}', insecure-skip-tls-verify: true}}}}]\n\
         contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n\
         users: [{{name: lab, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n",
        data(&certificate),
        data(&key)
    );
    let path = dir.join(file("kubeconfig"));
    fs::write(&path, config).unwrap();
    path
}

fn openssl(dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(arguments)
        .current_dir(dir)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
