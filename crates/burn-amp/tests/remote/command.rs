//! What the command refuses, and whom it serves.

use crate::*;
use burn::remote::{EndpointAddr, IrohHost, IrohIdentity, IrohRelays, RemoteHost};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use crate::server::refusal;

#[test]
fn a_taken_port() {
    let server = Server::new();
    let (_, address) = server.place.split_once("://").unwrap();
    let said = refusal(&format!("--address {address}"), None);
    says(&said, [address, "in use", "--address"]);
}

#[test]
fn a_wrong_address() {
    says(&refusal("--address gpu:x", None), ["gpu:x", "--address"]);
    // Of documentation: no machine has it.
    let said = refusal("--address 192.0.2.1:3000", Some("secret"));
    says(&said, ["cannot listen at 192.0.2.1:3000"]);
}

#[test]
fn a_device_that_is_not_there() {
    let said = refusal("--device tpu", None);
    says(&said, ["tpu", "this build has flex"]);
    says(&said, ["features of burn-amp"]);
    let said = refusal("--device flex:1", None);
    says(&said, ["there is no `flex:1`: 1 devices were found"]);
    says(&refusal("--device flex:a", None), ["\"flex:a\"", "number"]);
}

#[test]
fn nothing_is_open_to_others_without_a_token() {
    for open in ["--address 0.0.0.0:0", "--address [::]:0", "--iroh key"] {
        let said = refusal(open, None);
        says(&said, ["from other machines", "BURN_AMP_TOKEN"]);
        let said = refusal(open, Some(""));
        says(&said, ["BURN_AMP_TOKEN is empty"]);
    }
}

fn refused(host: &RemoteHost) -> String {
    let device = Device::remote_options(host).init();
    device.expect_err("a refusal").to_string()
}

#[test]
fn a_token() {
    let server = Server::with("--device flex --address 127.0.0.1:0", Some("secret"));
    let host = server.host();
    for host in [host.clone(), host.clone().with_credential("wrong")] {
        says(&refused(&host), ["rejected the credential"]);
    }
    let host = host.with_credential("secret");
    let device = Device::remote_options(&host).init().unwrap();
    MixedPrecision::f16().check_device(&device).unwrap();
    let third = Device::remote_options(&host).device_index(2).init();
    says(&third.unwrap_err().to_string(), ["hosts only 1 device"]);
}

/// Without relays: no other machine is asked.
#[test]
fn iroh() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.key");
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (key, port) = (file.display(), address.port());
    let arguments = format!("--device flex --iroh {key} --relays disabled --port {port}");
    let server = Server::with(&arguments, Some("secret"));
    let id = IrohIdentity::load_or_create(&file).unwrap().id();
    assert_eq!(server.place, format!("Iroh {id}"));
    let host = IrohHost::new(EndpointAddr::from(id));
    let host = host.with_relays(IrohRelays::Disabled).with_address(address);
    let host = RemoteHost::iroh(host);
    says(&refused(&host), ["rejected the credential"]);
    let host = host.with_credential("secret");
    let device = Device::remote_options(&host).init().unwrap();
    MixedPrecision::f16().check_device(&device).unwrap();
    let sum = Tensor::<1>::from_floats([1.0, 2.0], &device).sum();
    assert_eq!(sum.into_scalar::<f32>(), 3.0);
}

/// Nobody is at this port any more.
#[test]
fn a_server_that_is_not_there() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let said = refused(&RemoteHost::websocket(&format!("ws://{address}")));
    says(&said, ["cannot be reached", "is the server running?"]);
}
