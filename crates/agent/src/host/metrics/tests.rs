//! Tests of host facts.

use super::*;

const MEMORY: &str = "some avg10=1.53 avg60=0.87 avg300=0.21 total=170000\n\
                      full avg10=0.00 avg60=0.42 avg300=0.10 total=90000\n";

#[test]
fn psi_pressure_files_are_parsed() {
    let pressure = Pressure::parse(MEMORY).unwrap();
    assert_eq!(pressure.some.avg10, 1.53);
    assert_eq!(pressure.some.total, Duration::from_millis(170));
    assert_eq!(pressure.full.unwrap().avg60, 0.42);
    let old = MEMORY.lines().next().unwrap();
    assert_eq!(Pressure::parse(old).unwrap().full, None);
    for broken in [
        "",
        "some",
        "some avg10=x avg60=0 avg300=0 total=0",
        "full avg10=0",
    ] {
        assert_eq!(Pressure::parse(broken), None, "{broken:?}");
    }
}

#[test]
fn a_mount_is_read_only_by_its_own_flag_or_by_its_file_system() {
    let text = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
                30 22 8:2 /a /mnt/with\\040space ro,nosuid - xfs /dev/sdb rw\n\
                31 22 0:40 / /srv rw shared:3 master:2 - nfs4 host:/x\\134y ro,vers=4\n\
                a line of another shape\n";
    let mounts = MountInfo::parse_all(text);
    let seen: Vec<_> = mounts
        .iter()
        .map(|it| (it.point.as_str(), it.read_only))
        .collect();
    assert_eq!(
        seen,
        [("/", false), ("/mnt/with space", true), ("/srv", true)]
    );
    assert_eq!(
        (mounts[1].root.as_str(), mounts[1].kind.as_str()),
        ("/a", "xfs")
    );
    assert_eq!(mounts[2].source, "host:/x\\y");
}

#[test]
fn the_last_mount_on_the_root_decides_whether_it_is_read_only() {
    let line = |flag| format!("1 1 0:1 / / {flag} - ext4 /dev/x rw\n");
    let facts = |text: String| {
        HostMetrics::read(move |path| (path.as_str() == "/proc/1/mountinfo").then(|| text.clone()))
    };
    let both = line("rw") + &line("ro");
    assert_eq!(facts(both).root_read_only(), Some(true));
    assert_eq!(facts(line("rw")).root_read_only(), Some(false));
    let composed = line("ro").replace("ext4 /dev/x rw", "overlay composefs ro");
    assert_eq!(facts(composed).root_read_only(), Some(false));
    assert_eq!(facts(String::new()).root_read_only(), None);
}

#[test]
fn memory_sysctls_are_parsed_as_a_single_number() {
    let facts = HostMetrics::read(|path| {
        let last = path.as_str().rsplit('/').next();
        (last == Some("overcommit_memory")).then(|| "1\n".to_owned())
    });
    assert_eq!(
        (facts.overcommit_memory, facts.panic_on_oom),
        (Some(1), None)
    );
}

#[test]
fn missing_kernel_metrics_are_none() {
    let facts = HostMetrics::read(|_| None);
    assert_eq!(facts.pressure, Pressures::default());
    assert_eq!(facts.mounts, None);
    assert!(
        facts
            .memory
            .is_some_and(|it| it.total >= it.available && it.available > 0)
    );
    assert!(facts.uptime.is_some() && facts.kernel.is_some());
}
