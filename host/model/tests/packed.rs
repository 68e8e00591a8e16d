//! Sequences in one stream are the same as sequences one by one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use molt_model::{Config, Decoder, Network, Unit};
use molt_torch::vjp;
use tch::{Device, Kind, Tensor};

/// Very unequal lengths, in no order.
const LENGTHS: [usize; 7] = [3, 1, 90, 1, 17, 40, 2];

/// A layer without and with experts, and its parameters in float64, as leaves.
fn layers() -> Vec<(Network, Vec<Tensor>)> {
    ["qwen3", "qwen3_moe"]
        .into_iter()
        .map(|kind| {
            let config = format!(
                r#"{{"model_type": "{kind}", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 10,
                "head_dim": 6, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 7, "initializer_range": 0.4}}"#
            );
            let (network, parameters) = Decoder::random(Config::parse(&config).unwrap(), 3).into_parts();
            let leaf = |name: String| parameters[&name].to_kind(Kind::Double).set_requires_grad(true);
            let parameters = network.names(Unit::Layer(0)).into_iter().map(leaf).collect();
            (network, parameters)
        })
        .collect()
}

/// Numbers that differ from each other, the same in every run.
fn numbers(tokens: usize, salt: f64) -> Tensor {
    let line = Tensor::arange(12 * tokens as i64, (Kind::Double, Device::Cpu));
    ((line * 1.7 + salt).sin() * 1.3).view([1, -1, 12])
}

/// The layer's output for a stream of sequences of these lengths, and the gradients by the stream and by parameters.
fn run(
    (network, parameters): &(Network, Vec<Tensor>),
    stream: &Tensor,
    gradient: &Tensor,
    lengths: &[usize],
) -> (Tensor, Tensor, Vec<Tensor>) {
    let x = stream.copy().set_requires_grad(true);
    let sequences = network.sequences(lengths, 0..stream.size()[1] as usize);
    let (output, _) = network.layer(0, parameters, &x, &sequences, None).unwrap();
    let inputs: Vec<&Tensor> = std::iter::once(&x).chain(parameters).collect();
    let mut found = vjp(&[&output], &inputs, &[gradient]).unwrap().into_iter().map(Option::unwrap);
    let by_x = found.next().unwrap();
    (output.detach(), by_x, found.collect())
}

fn near(a: &Tensor, b: &Tensor) -> bool {
    let difference = (a - b).abs().max().double_value(&[]);
    difference <= 1e-11 * (1.0 + b.abs().max().double_value(&[]))
}

/// The places of sequences in the stream.
fn places(lengths: &[usize]) -> Vec<(i64, i64)> {
    let starts = lengths.iter().scan(0, |end, length| Some(std::mem::replace(end, *end + length)));
    starts.zip(lengths).map(|(start, length)| (start as i64, *length as i64)).collect()
}

#[test]
fn a_stream_is_its_sequences_one_by_one() {
    for layer in layers() {
        // At the end are tokens that belong to none.
        let tokens = LENGTHS.iter().sum::<usize>() + 3;
        let (stream, gradient) = (numbers(tokens, 0.3), numbers(tokens, 0.8));
        let _ = gradient.narrow(1, tokens as i64 - 3, 3).zero_();
        let (output, by_x, by_parameters) = run(&layer, &stream, &gradient, &LENGTHS);
        let mut sums: Vec<Tensor> = by_parameters.iter().map(Tensor::zeros_like).collect();
        for (start, length) in places(&LENGTHS) {
            let of = |t: &Tensor| t.narrow(1, start, length);
            let own = [length as usize];
            let (alone, by_own, by_parameters) = run(&layer, &of(&stream), &of(&gradient), &own);
            assert!(near(&of(&output), &alone) && near(&of(&by_x), &by_own), "{start} {length}");
            sums.iter_mut().zip(by_parameters).for_each(|(sum, own)| drop(sum.g_add_(&own)));
        }
        for (found, expected) in by_parameters.iter().zip(&sums) {
            assert!(near(found, expected));
        }
    }
}

#[test]
fn what_stands_in_a_neighbour_reaches_no_other_sequence() {
    for layer in layers() {
        let tokens = LENGTHS.iter().sum::<usize>();
        let (stream, gradient) = (numbers(tokens, 0.3), numbers(tokens, 0.8));
        let (expected, by_expected, _) = run(&layer, &stream, &gradient, &LENGTHS);
        for broken in 0..LENGTHS.len() {
            for garbage in [f64::NAN, f64::INFINITY, 1e200] {
                let (stream, places) = (stream.copy(), places(&LENGTHS));
                let (start, length) = places[broken];
                let _ = stream.narrow(1, start, length).fill_(garbage);
                let (output, by_x, _) = run(&layer, &stream, &gradient, &LENGTHS);
                for (nth, &(start, length)) in places.iter().enumerate().filter(|(nth, _)| *nth != broken) {
                    let of = |t: &Tensor| t.narrow(1, start, length);
                    assert!(near(&of(&output), &of(&expected)), "{garbage} in {broken} reached {nth}");
                    assert!(near(&of(&by_x), &of(&by_expected)), "{garbage} in {broken} came back to {nth}");
                }
            }
        }
    }
}
