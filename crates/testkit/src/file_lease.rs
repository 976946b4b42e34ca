//! A process that holds a lease on a file (fcntl(2), `F_SETLEASE`), as a hostile user may on files
//! of their own: no process can open the file without waiting.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Takes a write lease on its standard input, and renews it whenever it is being broken.
const PROGRAM: &str = r#"
    $SIG{IO} = "IGNORE";
    $| = 1;
    fcntl(STDIN, 1024, 1) or die "no lease: $!";
    print "held\n";
    while (getppid() != 1) {
        fcntl(STDIN, 1024, 1) if fcntl(STDIN, 1025, 0) != 1;
        select(undef, undef, undef, 0.001);
    }
"#;

/// The lease of another process; it ends when this is dropped.
#[derive(Debug)]
pub struct FileLease(Child);

impl FileLease {
    /// Takes a write lease on a file. No process may have it open.
    pub fn on(path: &Path) -> Self {
        Self::through(File::options().read(true).write(true).open(path).unwrap())
    }

    /// Takes it through a descriptor that was opened earlier, and that no other process has.
    pub fn through(file: File) -> Self {
        let mut child = Command::new("perl")
            .args(["-e", PROGRAM])
            .stdin(Stdio::from(file))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for FileLease {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
